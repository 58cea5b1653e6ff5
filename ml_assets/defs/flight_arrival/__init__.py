"""Arrival of a flight as a class: early, on time, late or very late. It reads the same sources as `flights`.

Here: the label, and the few features it needs. Not here: how a feature is computed (`flights.features`).
"""
