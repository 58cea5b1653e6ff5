"""Fixtures: a holdout with the predictions of its models."""

import pytest

from ml_assets_tests.evaluation.holdout_case import HoldoutCase, make_holdout


@pytest.fixture(scope="session")
def case() -> HoldoutCase:
    """Forty days of sixty rows; never changed by a test."""
    return make_holdout()
