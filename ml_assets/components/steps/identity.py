"""The code that a training's weights come from, as its fingerprint names it.

Here: versions of the pipeline's own functions, of the platform's modules that run in workers, and of the installed
packages both reach. Not here: how code gets a version (tables.code_version), the fingerprint itself (TrainingJob).
"""

import platform
from collections.abc import Mapping
from dataclasses import dataclass

from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.tables.code_version import code_version, modules_version, packages_of, script_version
from ml_assets.tables.reach import reached_by

_AGENT = "ml_assets.training.node.agent"
_LOOP = "ml_assets.training.entry"
_SCRIPT = "ml_assets.training.script.rank"
_CHANGES_NO_WEIGHTS = (
    "resources",  # documents, whose values are in the fingerprint, and transport, whose bytes have digests
    "ml_assets.training.telemetry",
    "ml_assets.training.attempt",
    "ml_assets.training.beginning",
    "ml_assets.training.process.heartbeat",
)
"""Modules that only tell of a training or count its attempts: none of them has a tensor in its hands."""
_CONVERTERS = "ml_assets.training.script.libraries"
_CONVERTED = {"lightgbm", "xgboost", "sklearn"}
"""Packages whose models a script hands in as they are, through `_CONVERTERS`, which imports all of them."""


@dataclass(frozen=True, kw_only=True)
class TrainingCode:
    """Versions of all code that can change the weights."""

    code_version: str
    """Version of the model function or script and, behind a dash, of `decode`."""
    loop_version: str
    """Version of the platform's modules that run in the workers."""
    packages: Mapping[str, str]
    """`python` and each installed package that the workers' code reaches → version."""


def training_code(spec: TrainingPipelineSpec) -> TrainingCode:
    """Read the versions of the code that `spec` trains with, as it stands on this machine."""
    model, sample = spec.model, spec.features.sample
    loop = (_AGENT, _SCRIPT if model.entry else _LOOP)
    paths = [path for path in (model.function, sample.decode if sample else None) if path]
    versions = [script_version(model.entry)] if model.entry else []
    own = [model.entry] if model.entry else []
    # Who trains a torch module trains the same one with another XGBoost.
    without = [*_CHANGES_NO_WEIGHTS, *([] if model.entry else ["ml_assets.training.script"])]
    converts = bool(_CONVERTED & reached_by(own, without=["ml_assets.training"]).packages)
    return TrainingCode(
        code_version="-".join([*versions, *map(code_version, paths)]),
        loop_version=modules_version(loop, without=without),
        packages={
            "python": ".".join(platform.python_version_tuple()[:2]),
            **packages_of(
                [*own, *(path.rpartition(".")[0] for path in paths), *loop],
                without=[*without, *([] if converts else [_CONVERTERS])],
            ),
        },
    )
