"""The tables of the films and the pipeline as `defs.yaml` declares them."""

from pathlib import Path
from typing import Any

import yaml

from ml_assets.components.specs import DatasetSpec, FeatureTableSpec
from ml_assets.defs import search_ranking

_FILE = Path(search_ranking.__file__).parent / "defs.yaml"


def _attributes(name: str) -> dict[str, Any]:
    (found,) = [
        one["attributes"]
        for one in yaml.safe_load_all(_FILE.read_text())
        if one["attributes"]["name"] == name
    ]
    return found


def dataset(name: str) -> DatasetSpec:
    """A dataset's declaration."""
    return DatasetSpec.model_validate(_attributes(name))


def film_pages() -> FeatureTableSpec:
    """The feature table's declaration."""
    return FeatureTableSpec.model_validate(_attributes("film_pages"))
