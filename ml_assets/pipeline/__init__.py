"""The way of a model, free of Dagster: validate its inputs, freeze them, train, evaluate, register.

Each step takes frozen values of the steps before it and gives one back, so a test or a notebook can take the same way
without a run. Here: which stages a step asks, in which order, and what it hands on. Not here: the stages themselves;
Dagster's assets, checks and pages (`components.steps`).
"""
