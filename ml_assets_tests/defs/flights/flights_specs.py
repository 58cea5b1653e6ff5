"""The tables of the pipeline as their `defs.yaml` declare them."""

from pathlib import Path
from typing import Any

import yaml

from ml_assets.components.specs import DatasetSpec, FeatureTableSpec
from ml_assets.defs import flights

_FOLDER = Path(flights.__file__).parent


def attributes(name: str) -> dict[str, Any]:
    """The attributes of a table's file."""
    return yaml.safe_load((_FOLDER / name / "defs.yaml").read_text())["attributes"]


def dataset(name: str) -> DatasetSpec:
    """A dataset's declaration."""
    return DatasetSpec.model_validate(attributes(name))


def flight_departures() -> FeatureTableSpec:
    """The feature table's declaration."""
    return FeatureTableSpec.model_validate(attributes("flight_departures"))
