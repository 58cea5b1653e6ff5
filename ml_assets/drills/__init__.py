"""Rehearsed failures: a short real training is damaged on purpose, and judged by what it comes to.

For `ml-assets drill` and the tests. Not here: what survives failures (ml_assets.training, resources.launcher).
"""
