"""Dossiers, reviews, and the guard of MLflow."""
