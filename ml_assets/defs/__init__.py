"""The pipelines: one folder each, what a user of the platform writes."""
