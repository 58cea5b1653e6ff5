"""Immutable training inputs: splits, shards and the document that names them."""
