"""Sensors that look at models, at runs that ended, and at differences between Dagster and the lake."""
