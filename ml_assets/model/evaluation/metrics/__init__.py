"""Metrics on rows, and their intervals over blocks. Imports neither sections, documents nor models.

metrics.py       metrics of each objective     list_metrics.py  metrics of ordered lists
row_weights.py   weighted means and quantiles  bootstrap.py     redraws, intervals, metrics over blocks
"""
