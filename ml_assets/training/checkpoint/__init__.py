"""Checkpoints of a training: files that are whole or absent, on the disk and in the store."""
