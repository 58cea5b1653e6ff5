"""Steps of a model, free of Dagster: validate its inputs, freeze them, train, evaluate, register.

Each step takes frozen values of earlier steps and returns one, so a test or a notebook can call the steps without a
Dagster run. Here: the stages that a step calls, their order, and the value it returns. Not here: the stages themselves;
Dagster's assets, checks and pages (`components.pipeline_steps`).
"""
