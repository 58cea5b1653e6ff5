"""Common parts of the trainings in several processes."""

from ml_assets_tests.training.conftest import lab, snapshot, unbroken

__all__ = ["lab", "snapshot", "unbroken"]
