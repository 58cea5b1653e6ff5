"""Pages beside those of Dagster: partitions, differences, the digest of all pipelines."""
