"""An installation for datasets of these tests, and their rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ml_assets.components import Dataset
from ml_assets_tests.components.installation import Installation, component
from ml_assets_tests.sources.sales import DATASET

Declare = Callable[..., Installation]


@pytest.fixture
def declare(tmp_path: Path) -> Declare:
    """Return an installation whose only dataset has this source, with changes of its other attributes."""
    home = tmp_path / "home"

    def declared(source: dict[str, Any], **changes: Any) -> Installation:
        return Installation(home, components=[component(Dataset, DATASET, source=source, **changes)])

    return declared
