"""Prior of a study: the trials of the model's newest result, so that a study of each day does not search from nothing.

Here: the choice and the thinning of the earlier trials. Not here: their use when values are drawn (`study`), the
section (`spec`).
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from ml_assets.tuning.spec import PriorSection, SpaceSection
from ml_assets.tuning.study_result import KnownPoint, StudyResult


@dataclass(frozen=True, kw_only=True)
class Prior:
    """Points that a study begins with."""

    result: str = ""
    """Digest of the result that they come from; empty without one."""
    repeated: tuple[KnownPoint, ...] = ()
    """Values of the first trials, best first."""
    seen: tuple[KnownPoint, ...] = ()
    """Points that the sampler sees besides, best first."""

    @classmethod
    def of(cls, result: StudyResult | None, space: SpaceSection, section: PriorSection | None) -> Self:
        """Return the prior from `result`; an empty one if there is none, or if no value of it lies in `space`."""
        if result is None or section is None:
            return cls()
        own = [
            KnownPoint(parameters=one.parameters, validation_loss=one.validation_loss or 0.0)
            for one in result.finished
        ]
        every = sorted([*own, *result.inherited], key=lambda one: one.validation_loss)
        known: list[KnownPoint] = []
        for one in every:
            if space.holds(one.parameters) and all(one.parameters != other.parameters for other in known):
                known.append(one)
        if not known:
            return cls()
        repeated = known[: section.best]
        seen = [one for one in thinned(known, section.keep) if one not in repeated]
        return cls(result=result.digest, repeated=tuple(repeated), seen=tuple(seen))

    def to_document(self) -> Mapping[str, Any]:
        """Return JSON values."""
        return json.loads(json.dumps(asdict(self)))

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Inverse of `to_document`."""
        repeated, seen = ([KnownPoint(**one) for one in document[name]] for name in ("repeated", "seen"))
        return cls(result=document["result"], repeated=tuple(repeated), seen=tuple(seen))


def thinned(points: Sequence[KnownPoint], keep: float) -> list[KnownPoint]:
    """Return a share of the points, at equal distances in their order, the first one included.

    At least one point is left out, unless there is only one: points of old days must not stay for ever.
    """
    kept = max(1, math.floor(len(points) * keep)) if points else 0
    return [points[math.floor(place / keep)] for place in range(kept)]
