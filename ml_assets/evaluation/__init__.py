"""Holdout metrics, slices, intervals, gates and the report."""
