"""`commit.json`, the marker that makes the files beside it a checkpoint, and which checkpoints stay.

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
    """A checkpoint is not what its commit marker says."""


@dataclass(frozen=True, kw_only=True)
class CommitMarker:
    """Content of a checkpoint's commit marker."""

    fingerprint: str
    """Fingerprint of the training."""
    best_step: int
    """Step of the best checkpoint by then; 0: none yet."""
    sha256: Mapping[str, str]
    """Name of each file, of all ranks → 64 hex digits."""

    def to_bytes(self) -> bytes:
        """The content of the marker."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The marker in `folder`. Raises `CheckpointDamaged`, also for one of another version of this software."""
        try:
            facts: dict[str, Any] = json.loads((folder / COMMIT).read_bytes())
            return cls(**facts)
        except (OSError, ValueError, TypeError) as error:
            raise CheckpointDamaged(f"{folder}: {error}") from error


def kept(best_steps: Mapping[int, int], keep: int, began_from: int) -> set[int]:
    """Return the checkpoints that stay: the newest `keep`, the best one of each of those, and the one from which the
    running attempt began, by its record.

    `best_steps`: step of each checkpoint there is → of the best one by then (0: none yet).
    """
    newest = sorted(best_steps, reverse=True)[:keep]
    return {*newest, *(best_steps[step] for step in newest), began_from} & best_steps.keys()
