"""Studies: trainings with different values of hyperparameters, and the choice among them. Free of Dagster.

Here: the `tuning` section of a pipeline, the study in Optuna's storage, and the document of its result. Not here:
launching the trial of a study (`tuning.tune`), its asset (`components.assets.hyperparameters`).
"""
