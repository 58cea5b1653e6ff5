"""The project as a reader of the docs has it."""

import pytest

from ml_assets_tests.tour.pages import Checkout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """The project as a reader of the page has it, but for its pipelines."""
    return Checkout.in_folder(tmp_path_factory.mktemp("tour"))
