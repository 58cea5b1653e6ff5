"""Spans of a training, from its record of usage and the events of its workers.

    launch > attempt > rank
                     > workers > steps to a validation, checkpoint

A rank begins by itself, and then waits until all have begun. From there the ranks step together, so their steps are
those of one span. An attempt ends with its last place, its ranks with their last sign of life.
"""

from collections.abc import Iterable

from ml_assets.extras.traces.span import Attribute, TraceSpan
from ml_assets.model.steps.goodput import Trained, mark_of, trained_of
from ml_assets.model.steps.usage import UsageRecord, UsedAttempt, UsedLaunch
from resources.job.events import MOST_RANKS_TOLD, TrainingEvent

_ATTEMPTS = 20
"""Newest attempts of a launch that have a span."""
_NEWEST = 100
"""Validations and checkpoints of an attempt that have a span: a training may have thousands."""
_FAILED = ("failed", "diverged", "lost")


def training_spans(record: UsageRecord, run_id: str, events: Iterable[TrainingEvent]) -> list[TraceSpan]:
    """Return the spans of the launches by one Dagster run, oldest first. `events`: those of the training's folder."""
    trained = trained_of(mark for event in events if (mark := mark_of(event)) is not None)
    return [_launch(record, one, trained) for one in record.launches if one.run_id == run_id]


def _launch(record: UsageRecord, launch: UsedLaunch, trained: list[Trained]) -> TraceSpan:
    numbered = enumerate(record.attempts, start=1)
    # A launch may take up an attempt that another one began.
    own = [(number, one) for number, one in numbered if _overlaps(one, launch)]
    return TraceSpan(
        name="launch",
        began=launch.began,
        ended=launch.at,
        attributes={
            "ml_assets.model": record.model,
            "ml_assets.partition": record.partition,
            "ml_assets.fingerprint": record.fingerprint,
            "ml_assets.state": launch.state,
            "enduser.id": launch.author,
        },
        error=launch.state if launch.state in _FAILED else "",
        parts=[_attempt(number, one, launch, trained) for number, one in own[-_ATTEMPTS:]],
    )


def _overlaps(attempt: UsedAttempt, launch: UsedLaunch) -> bool:
    return attempt.reading.began <= launch.at and attempt.reading.at >= launch.began


def _attempt(number: int, attempt: UsedAttempt, launch: UsedLaunch, trained: list[Trained]) -> TraceSpan:
    began = max(attempt.reading.began, launch.began)
    ended = min(attempt.reading.at, launch.at)
    attributes: dict[str, Attribute] = {"ml_assets.state": attempt.state, "ml_assets.gpus": attempt.gpus}
    if attempt.gpu:
        attributes["ml_assets.gpu"] = attempt.gpu
    here = [one for one in trained if began <= one.started.time <= ended]
    return TraceSpan(
        name=f"attempt {number}",
        began=began,
        ended=ended,
        attributes=attributes,
        error=attempt.state if attempt.state in _FAILED else "",
        parts=[part for one in here for part in (*_ranks(one), _workers(one))],
    )


def _ranks(trained: Trained) -> list[TraceSpan]:
    """Return a span for each rank whose begin is known: of the first `MOST_RANKS_TOLD`, not of scripts, which begin
    their ranks themselves, and not of trainings of earlier releases."""
    ended = [one.values for one in trained.marks if one.kind == "ended"]
    causes = {one.get("rank"): str(one.get("cause", "failed")) for one in ended}
    until = max(trained.last_sign, trained.started.time)
    return [
        TraceSpan(
            name=f"rank {rank}",
            began=min(float(began), until),  # clocks of machines differ
            ended=until,
            attributes={"ml_assets.rank": rank},
            error=causes.get(rank, ""),
        )
        for rank, began in enumerate([*trained.started.values.get("ranks_began", ())][:MOST_RANKS_TOLD])
    ]


def _workers(trained: Trained) -> TraceSpan:
    started = trained.started
    size = int(started.values.get("world_size", 0))
    return TraceSpan(
        name=f"workers 0 to {size - 1}" if size > 1 else "worker",
        began=started.time,
        ended=max(trained.last_sign, started.time),
        attributes={"ml_assets.workers": size, "ml_assets.from_step": started.step},
        parts=sorted([*_steps(trained), *_checkpoints(trained)], key=lambda one: one.began),
    )


def _steps(trained: Trained) -> list[TraceSpan]:
    """Return the spans between validations."""
    ends = [one for one in trained.marks if one.kind == "epoch"]
    begins = [trained.started, *ends]
    return [
        TraceSpan(name=f"steps to {end.step}", began=begin.time, ended=end.time)
        for begin, end in zip(begins, ends, strict=False)
    ][-_NEWEST:]


def _checkpoints(trained: Trained) -> list[TraceSpan]:
    marks = [one for one in trained.marks if one.kind == "checkpoint"][-_NEWEST:]
    return [
        TraceSpan(
            name="checkpoint",
            began=max(
                one.time - float(one.values.get("checkpoint_duration_ms", 0.0)) / 1000, trained.started.time
            ),
            ended=one.time,
            attributes={"ml_assets.step": one.step},
        )
        for one in marks
    ]
