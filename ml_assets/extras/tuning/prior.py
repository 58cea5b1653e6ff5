"""Prior of a study: the trials of the model's newest result, so that a study of each day does not search from nothing.

Here: the choice and the thinning of the earlier trials. Not here: their use when values are drawn (`study`), the
section (`spec`).
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from ml_assets.foundation.days import Days
from ml_assets.model.steps.search_space import PriorSection, SpaceSection
from ml_assets.model.steps.study_metric import BY_LOSS, StudyMetric
from ml_assets.model.steps.study_result import KnownPoint, StudyResult
from resources.ledger import TrainedOn
from resources.words import counted


@dataclass(frozen=True, kw_only=True)
class Prior:
    """Points that a study begins with."""

    result: str = ""
    """Digest of the result that they come from; empty without one."""
    days: Days = field(default_factory=Days)
    """Days that this result has seen."""
    repeated: tuple[KnownPoint, ...] = ()
    """Values of the first trials, best first."""
    seen: tuple[KnownPoint, ...] = ()
    """Points that the sampler sees besides, best first."""
    left_out: str = ""
    """Number of points that do not count because of their rows or their metric, and the reasons; empty if all count."""

    @classmethod
    def of(
        cls,
        result: StudyResult | None,
        space: SpaceSection,
        section: PriorSection | None,
        refused: Mapping[TrainedOn, str],
        metric: StudyMetric = BY_LOSS,
    ) -> Self:
        """Return the prior from `result`; an empty one if there is none, or if no value of it lies in `space`.

        `refused`: window → the reason for which no study may learn from its losses. `metric` is that of the new study:
        points of another one do not count.
        """
        if result is None or section is None:
            return cls()
        every = sorted(_points(result), key=result.compared_by.require_loss_of)
        if other := result.compared_by.other_than(metric):
            said = f"{counted(len(every), 'point')} of study {result.digest[:12]} left out: {other}"
            return cls(left_out=said)
        counting = [one for one in every if one.window not in refused]
        left_out = ""
        if lost := len(every) - len(counting):
            reasons = "; ".join(dict.fromkeys(refused.values()))
            left_out = f"{counted(lost, 'point')} of earlier studies left out: {reasons}"
        known: list[KnownPoint] = []
        for one in counting:
            if space.holds(one.parameters) and all(one.parameters != other.parameters for other in known):
                known.append(one)
        if not known:
            return cls(left_out=left_out)
        repeated = known[: section.best]
        seen = [one for one in thinned(known, section.keep) if one not in repeated]
        return cls(
            result=result.digest,
            days=result.seen,
            repeated=tuple(repeated),
            seen=tuple(seen),
            left_out=left_out,
        )

    def to_document(self) -> Mapping[str, Any]:
        """Return JSON values."""
        return json.loads(json.dumps(asdict(self)))

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Inverse of `to_document`."""
        points = {name: tuple(KnownPoint.of(one) for one in document[name]) for name in ("repeated", "seen")}
        known: dict[str, Any] = {
            **document,
            **points,
            "days": Days.from_document(document["days"]),
        }
        return cls(**known)


def windows_of(result: StudyResult) -> list[TrainedOn]:
    """Return the windows whose losses `result` holds, each once: its own, and those of earlier studies."""
    return list(dict.fromkeys(one.window for one in _points(result)))


def _points(result: StudyResult) -> list[KnownPoint]:
    own = [
        KnownPoint(
            parameters=one.parameters,
            validation_loss=one.validation_loss or 0.0,
            window=result.window,
            value=one.value,
        )
        for one in result.finished
    ]
    return [*own, *result.inherited]


def thinned(points: Sequence[KnownPoint], keep: float) -> list[KnownPoint]:
    """Return a share of the points, at equal distances in their order, the first one included.

    At least one point is left out, unless there is only one: points of old days must not stay for ever.
    """
    kept = max(1, math.floor(len(points) * keep)) if points else 0
    return [points[math.floor(place / keep)] for place in range(kept)]
