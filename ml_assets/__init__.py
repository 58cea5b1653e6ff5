"""Dated raw data to registered PyTorch models, as Dagster assets on versioned inputs."""
