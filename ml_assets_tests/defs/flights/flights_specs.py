"""The tables and models of the flights as their `defs.yaml` declare them."""

from pathlib import Path
from typing import Any

import yaml

from ml_assets.components.specs import DatasetSpec, FeatureTableSpec, TrainingPipelineSpec
from ml_assets.defs import flights

_FOLDER = Path(flights.__file__).parent


def attributes(name: str) -> dict[str, Any]:
    """The attributes of a file, the first ones if it declares several."""
    first, *_ = yaml.safe_load_all((_FOLDER / name / "defs.yaml").read_text())
    return first["attributes"]


def dataset(name: str) -> DatasetSpec:
    """A dataset's declaration."""
    return DatasetSpec.model_validate(attributes(name))


def flight_departures() -> FeatureTableSpec:
    """The feature table's declaration."""
    return FeatureTableSpec.model_validate(attributes("flight_departures"))


def pipeline(name: str) -> TrainingPipelineSpec:
    """A model's declaration."""
    return TrainingPipelineSpec.model_validate(attributes(name))
