"""The YAML vocabulary of the platform and the only code that makes Dagster objects.

What belongs here: components, what they share, conditions, schedules, sensors, pages. What does not: any work
of a stage. `Dataset`, `FeatureTable` and `TrainingPipeline` are what a `defs.yaml` names.
"""

from ml_assets.components.dataset import Dataset
from ml_assets.components.feature_table import FeatureTable
from ml_assets.components.training_pipeline import TrainingPipeline

__all__ = ["Dataset", "FeatureTable", "TrainingPipeline"]
