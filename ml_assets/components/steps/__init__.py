"""The five steps of a training pipeline, one op each: validate_inputs → snapshot → train → evaluate → register.

What belongs here: calling a stage and telling Dagster. What does not: the work of a stage. Steps hand each
other small JSON values; data and weights lie in the lake and the artifact folders.
"""
