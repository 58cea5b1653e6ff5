"""Commit marker `commit.json`, which makes the files beside it a checkpoint, and the choice of checkpoints to keep.

    {"fingerprint": "…", "best_step": 200, "sha256": {".metadata": "…", "__0_0.distcp": "…"}}

Not here: writing and reading the files (checkpoints, stored_checkpoints).
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

COMMIT = "commit.json"


class CheckpointDamaged(Exception):
    """A checkpoint differs from its commit marker."""


@dataclass(frozen=True, kw_only=True)
class CommitMarker:
    """Content of a checkpoint's commit marker."""

    fingerprint: str
    """Fingerprint of the training."""
    best_step: int
    """Step of the best checkpoint at that time; 0: none yet."""
    sha256: Mapping[str, str]
    """Name of each file of all ranks → 64 hex digits."""

    def to_bytes(self) -> bytes:
        """Return the content of the marker file."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the marker in `folder`. Raises `CheckpointDamaged`, also for a marker of another version of this
        software."""
        try:
            facts: dict[str, Any] = json.loads((folder / COMMIT).read_bytes())
            return cls(**facts)
        except (OSError, ValueError, TypeError) as error:
            raise CheckpointDamaged(f"{folder}: {error}") from error


def kept(best_steps: Mapping[int, int], keep: int, began_from: int) -> set[int]:
    """Return the checkpoints to keep: the newest `keep`, the best checkpoint of each of those, and the checkpoint from
    which the running attempt began (`began_from`).

    `best_steps`: step of each existing checkpoint → step of the best one at that time (0: none yet).
    """
    newest = sorted(best_steps, reverse=True)[:keep]
    return {*newest, *(best_steps[step] for step in newest), began_from} & best_steps.keys()
