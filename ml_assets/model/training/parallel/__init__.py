"""Parallelism: several ranks that compute one model or one gradient."""
