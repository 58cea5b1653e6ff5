"""Tag of a run whose training begins with a checkpoint of another training: who writes it, and how it is read.

Not here: the launch that sets it (`context.restore`), the copy of the state (`model.training.checkpoint.restored`).
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from ml_assets.components.metadata import RESTORES
from ml_assets.data.tables.guard import BuildRefused
from resources.job.job import RestoredState


class NoSuchState(BuildRefused):
    """A run names a state to begin with in another form."""


@dataclass(frozen=True, kw_only=True)
class Restores:
    """State with which the training of a run begins."""

    run: str
    """Run that made the checkpoint."""
    state: RestoredState

    def to_tag(self) -> dict[str, str]:
        """Return the tag of the run."""
        return {RESTORES: json.dumps(dataclasses.asdict(self), sort_keys=True)}

    @classmethod
    def of(cls, tags: Mapping[str, str]) -> Self | None:
        """Read the tags of a run; None if its training begins at step 0. Raises `NoSuchState`."""
        if (written := tags.get(RESTORES)) is None:
            return None
        try:
            facts: dict[str, Any] = json.loads(written)
            return cls(run=facts["run"], state=RestoredState(**facts["state"]))
        except (ValueError, TypeError, KeyError):
            raise NoSuchState(
                f"the tag {RESTORES} of this run names no checkpoint: only `ml-assets launch --restore` and the API "
                "set it"
            ) from None
