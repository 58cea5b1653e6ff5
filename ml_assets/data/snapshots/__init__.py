"""Immutable training inputs: splits, shards and their manifest."""
