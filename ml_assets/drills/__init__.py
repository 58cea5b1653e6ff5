"""Fault injection: a short real training is damaged on purpose, and compared with an undisturbed one.

For `ml-assets drill` and the tests. Not here: the code that survives faults (ml_assets.training, resources.launcher).
"""
