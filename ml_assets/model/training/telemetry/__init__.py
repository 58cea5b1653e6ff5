"""Metrics of a running training, and the events that carry them."""
