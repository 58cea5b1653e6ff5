"""Drills: damage a short real training on purpose, and compare it with an undisturbed one.

For `ml-assets drill` and the tests. Not here: the code that survives faults (ml_assets.model.training,
resources.launcher).
"""
