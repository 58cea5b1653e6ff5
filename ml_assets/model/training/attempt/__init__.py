"""Attempts of a job: the record of each, its exit code, and the cost of a recovery."""
