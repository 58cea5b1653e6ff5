"""Judging a table: contract, volume, profile, verdict. Reads frames, returns values; stores nothing."""
