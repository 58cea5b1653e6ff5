"""Training settings: the `training` section of a pipeline, and part of a training job. Standard library only.

Here: all parts as one flat section, and the identity of a training. Not here: the settings with their checks
(setting_parts), rules across them (compatibility), the data (job), the machines (resource_profile).
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self, cast

from resources.job.compatibility import require_compatible
from resources.job.setting_parts import (
    BatchSettings,
    CheckpointSettings,
    LivenessSettings,
    OptimizerSettings,
    Parallel,
    PrecisionSettings,
)

OF_SCRIPTS = (
    "workers",
    "lanes",  # only because there may not be more workers than lanes
    "category_dropout",
    "keep_checkpoints",
    "max_attempts",
    "heartbeat_timeout_seconds",
    "stall_timeout_seconds",
    "metrics_port",
)
"""Settings that apply to a script. The others concern the platform's loop, and a script has its own."""


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(
    LivenessSettings, CheckpointSettings, PrecisionSettings, BatchSettings, OptimizerSettings
):
    """Settings of a training, part by part. A change makes another job, unless the setting changes no weights."""

    __pydantic_config__ = OptimizerSettings.__pydantic_config__

    parallel: Parallel = field(default_factory=Parallel)
    """Layout of the model over the workers."""

    def __post_init__(self) -> None:
        for part in (
            OptimizerSettings,
            BatchSettings,
            PrecisionSettings,
            CheckpointSettings,
            LivenessSettings,
        ):
            part.__post_init__(self)
        require_compatible(self, self.parallel, self, self)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read settings from JSON or YAML. Raise `ValueError` for contradictions, `TypeError` for an unknown key."""
        facts = dict(document)
        parallel: Any = facts.pop("parallel", {})
        if not isinstance(parallel, dict):
            raise ValueError(
                f"parallel must be a mapping with keys shard, tensor and pipeline, not {parallel!r}"
            )
        return cls(**facts, parallel=Parallel(**cast(dict[str, Any], parallel)))

    @property
    def identity(self) -> dict[str, Any]:
        """Return the settings that can change the weights. Other values make another training."""
        facts = dataclasses.asdict(self)
        facts["lanes"] = self.lane_count
        if self.determinism == "bitwise":
            del facts["workers"]
        if not self.compile:  # without it, activation checkpointing gives the same bits
            facts["activation_checkpointing"] = "none"
        if self.checkpoint_storage == "compressed":  # lossless
            facts["checkpoint_storage"] = "fp32"
        return {name: value for name, value in facts.items() if name not in _CHANGE_NO_WEIGHTS}


def _names(part: type[LivenessSettings | CheckpointSettings]) -> set[str]:
    return {each.name for each in dataclasses.fields(part)}


_CHANGE_NO_WEIGHTS = (
    _names(LivenessSettings) | (_names(CheckpointSettings) - {"checkpoint_storage"}) | {"decode_threads"}
)
