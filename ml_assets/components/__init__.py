"""YAML vocabulary of the platform, and the only code that makes Dagster objects.

Here: components, their common code, conditions, schedules, sensors, pages. Not here: the work of a stage. A `defs.yaml`
names `Dataset`, `FeatureTable` and `TrainingPipeline`.
"""

from ml_assets.components.dataset import Dataset
from ml_assets.components.feature_table import FeatureTable
from ml_assets.components.training_pipeline import TrainingPipeline

__all__ = ["Dataset", "FeatureTable", "TrainingPipeline"]
