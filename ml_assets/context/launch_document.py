"""Documents of launches: the body of a request to the API, and the file of `ml-assets launch -f`.

Not here: what may be launched (`context.launch`), the other documents of the API (`ml_assets.extras.api.shapes`).
"""

import json
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ml_assets.context.errors import LaunchRefused


class _Launch(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    config: Mapping[str, Any] = Field(
        default_factory=dict,
        description="Changes of the declared `resources` of the workers, such as `memory`.",
        examples=[{"memory": "8Gi"}],
    )

    @property
    def resources(self) -> str | None:
        """`config` as a launch takes it; None without changes."""
        return json.dumps({**self.config}, sort_keys=True) if self.config else None


class LaunchRequest(_Launch):
    """Launch of a model, a table, a study, predictions or their performance, as `ml-assets launch` takes it."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"target": "datasets/sales", "partitions": "2024-01-01..2024-01-08"}]}
    )

    target: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_./-]*$", max_length=200)
    partitions: str | None = Field(
        None, max_length=90, description="`KEY`, or `FIRST..LAST`; absent for a target without partitions."
    )


class StudyRequest(_Launch):
    """Study of a model: the search that its section `tuning` declares, on the newest window.

    Space, metric, sampler, pruner, budget and the seed of a study are declared.
    """

    model_config = ConfigDict(json_schema_extra={"examples": [{"model": "store_demand"}]})

    model: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=100)


class TrainingRequest(_Launch):
    """Training of a model: validation, training set, training, evaluation and registration."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "store_demand", "partition": "2024-01-08"}]}
    )

    model: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=100)
    partition: str = Field(max_length=40)


def read_training(file: Path) -> TrainingRequest:
    """Read the document of a training from a YAML or JSON file. Raises `LaunchRefused` with file and field."""
    try:
        written: Any = yaml.safe_load(file.read_text(encoding="utf-8"))
        if isinstance(written, dict) and isinstance(written.get("partition"), date):  # pyright: ignore[reportUnknownMemberType]
            written["partition"] = written["partition"].isoformat()  # YAML reads 2024-01-08 as a date
        return TrainingRequest.model_validate(written)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise LaunchRefused(f"{file} cannot be read as YAML: {str(error).partition(chr(10))[0]}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the document"
        raise LaunchRefused(
            f"{file}: {where}: {first['msg']}. It has `model`, `partition`, and may have `config`"
        ) from error
