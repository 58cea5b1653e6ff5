"""Everything outside the process, behind small protocols: lake, launcher, tracker, ledger, artifacts.

What belongs here: clients, stores, the settings they read. What does not: anything that knows what a
dataset, a feature or a model is. Nothing in this package imports `ml_assets`.
"""
