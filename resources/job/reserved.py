"""Resources that an attempt holds, as its launcher reports them: the values of a `reserved` event.

A launcher reports a reading when the attempt gets its first place, whenever a place is added or given back, and at the
end. Not here: the pods of a reading (`launcher.kubernetes.capacity`), hours and prices (`ml_assets.model.steps`).
"""

from dataclasses import asdict, dataclass
from typing import Self

from resources.job.events import TrainingEvent

RESERVED = "reserved"
"""Kind of the event."""


@dataclass(frozen=True, kw_only=True)
class Reserved:
    """Reading of one attempt's places: its pods, or its processes on this machine."""

    job: str
    """Unique name of the attempt: the uid of its Job, or a name that the launcher made."""
    at: float
    """Time of the reading, as `began` in seconds since the epoch, UTC."""
    began: float
    """Time at which it got its first place."""
    places: int
    """Places held at that time; 0 at the end."""
    place_seconds: float
    """Seconds until then, summed over the places."""
    cores: float
    """Processor cores of each place."""
    memory_bytes: int
    """Memory of each place; 0 for processes of this machine, which reserve none."""
    gpus: int | None
    """GPUs of each place. None: a process of this machine, which takes one if the training uses GPUs."""

    def event(self) -> TrainingEvent:
        """Return the event that reports this reading."""
        values = asdict(self)
        return TrainingEvent(kind=RESERVED, step=0, time=values.pop("at"), values=values)

    @classmethod
    def of(cls, event: TrainingEvent) -> Self:
        """Read the event."""
        return cls(at=event.time, **event.values)
