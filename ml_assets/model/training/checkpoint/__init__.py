"""Checkpoints of a training: each is complete or absent, on the disk and in the store."""
