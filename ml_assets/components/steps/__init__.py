"""Five steps of a training pipeline, one op each: validate_inputs → snapshot → train → evaluate → register.

Here: calling a stage and reporting to Dagster. Not here: the work of a stage. Steps pass small JSON values to each
other; data and weights are in the lake and the artifact folders.
"""
