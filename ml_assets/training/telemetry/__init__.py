"""Figures of a training while it runs, and the events that carry them."""
