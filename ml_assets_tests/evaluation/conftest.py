"""The holdout most tests here look at."""

import pytest

from ml_assets_tests.evaluation.cases import Case, make_case


@pytest.fixture(scope="session")
def case() -> Case:
    """Forty days of sixty rows; never changed by a test."""
    return make_case()
