"""Words of `ml-assets plan`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ml_assets.cli.terminal import say
from ml_assets.data.tables.guard import together
from resources.words import counted, name_some

if TYPE_CHECKING:
    from ml_assets.context.plan import LaunchPlan
    from ml_assets.extras.costs.expected import Expectation, ExpectedValue
    from ml_assets.model.steps.window import ColumnChange, ReadBy

SHOWN = 10
"""Stale partitions that the plan names. It counts the others."""


def say_plan(planned: "LaunchPlan") -> None:
    """Print what a launch would run, and why."""
    table = planned.spec.features.table
    validation = planned.validation
    first, last = validation.keys[0], validation.keys[-1]
    say(
        f"{planned.model} {planned.partition} reads {len(validation.keys)} partitions of {table}, {first} to {last}, "
        f"at main {planned.commit[:12]}"
    )
    for what, why in together(validation.refused).items():
        state, _, reason = why.splitlines()[0].removeprefix("is ").partition(": ")
        say(f"  {state:9} {what}: {reason}")
    for key, why in list(validation.stale.items())[:SHOWN]:
        say(f"  stale     {table} {key}: {why}")
    if len(validation.stale) > SHOWN:
        say(f"  stale     {table}: {len(validation.stale) - SHOWN} more")
    for what, why in list(validation.impossible.items())[:SHOWN]:
        say(f"  missing   {what}: {why.removeprefix('is missing ')}")
    by_hand: list[str] = []
    for name, spans in planned.to_build.items():
        shown = ", ".join(span.named for span in spans) or "the whole table"
        # Unusable partitions are built again, too. They have their line above.
        if not spans or any(
            f"{name} {key}" not in validation.unusable for span in spans for key in span.keys
        ):
            say(f"  missing   {name}: {shown}")
        by_hand += [f"ml-assets launch {name} {span.typed}" for span in spans] or [f"ml-assets launch {name}"]
    for change in planned.changes[:SHOWN]:
        say(f"  changed   {table} {_in_words(change)}")
    if len(planned.changes) > SHOWN:
        say(f"  changed   {table}: {len(planned.changes) - SHOWN} more")
    for one in planned.deprecated:
        say(f"  deprecated {one.table}: {one.deprecated}")
    if planned.chosen is not None:
        say(f"  values    {planned.chosen.says}")
    if planned.initial and not planned.initial_fault:
        say(f"  weights   begin with {planned.initial}")
    if planned.champion_has_seen:
        say(f"  champion  {planned.champion_has_seen}")
    if planned.expected is not None:
        for line in _expected(planned.model, planned.expected):
            say(f"  expected  {line}")
    say()
    for line in _conclusion(planned, by_hand):
        say(line)
    if validation.stale:
        say("To rebuild the stale partitions:")
        for name, spans in planned.to_rebuild.items():
            for typed in [f" {span.typed}" for span in spans] or [""]:
                say(f"  ml-assets launch {name}{typed}")


def _expected(model: str, expected: "Expectation") -> Iterator[str]:
    """Yield hours, money and start, each with its interval."""
    if expected.fault:
        yield f"unknown: {expected.fault}"
        return
    if expected.hours is None:
        yield f"no history: no training of {model} has completed"
        return
    count = counted(expected.trainings, "training")
    whose = "with the same function and workers" if expected.is_alike else f"of {model}"
    yield f"{_estimate(expected.hours, _time)}, from {count} {whose}"
    if expected.money is not None:
        yield f"{_estimate(expected.money, '{:.2f}'.format)} {expected.currency}".rstrip()
    if expected.start_hours is not None:
        yield f"starts after {_estimate(expected.start_hours, _time)} in the queue"


def _estimate(one: "ExpectedValue", shown: Callable[[float], str]) -> str:
    if one.low is None or one.high is None:
        return f"{shown(one.middle)} (a single training has no interval)"
    return f"{shown(one.middle)} (80 %: {shown(one.low)} to {shown(one.high)})"


def _time(hours: float) -> str:
    """Return a time in the unit that fits it."""
    if hours >= 1:
        return f"{hours:.1f} h"
    return f"{60 * hours:.1f} min" if hours >= 1 / 60 else f"{3600 * hours:.0f} s"


def _conclusion(planned: "LaunchPlan", by_hand: Sequence[str]) -> list[str]:
    spec, validation = planned.spec, planned.validation
    launch = f"ml-assets launch {planned.model} {planned.partition}"
    if planned.metric_fault:
        return [f"It would refuse: {planned.metric_fault}."]
    if len(validation.keys) < spec.window.total:
        remedy = (
            f"{planned.first_possible} is the first partition with a complete window: ml-assets plan {spec.name} "
            f"{planned.first_possible}"
            if planned.first_possible
            else f"{spec.features.table} has fewer partitions: choose a shorter window."
        )
        return [
            f"It would refuse: the window needs {spec.window.total} partitions and has {len(validation.keys)}.",
            remedy,
        ]
    if validation.rejected:
        return [
            "It would refuse. Fix the sources of the rejected partitions and materialize these again,",
            "or accept one as it is: ml-assets accept TABLE PARTITION --reason '…'.",
        ]
    if validation.impossible:
        return [
            "It would refuse: no run can build partitions outside their table. Change `start` or `end` of the table,",
            f"or choose another partition of {spec.name}.",
        ]
    if validation.to_build:
        return [
            "It would refuse. While `ml-assets ui` runs, the sensor build_missing_upstream then builds the missing",
            f"partitions in order, and after them the model. Here: {launch} --with-missing",
            "By hand, in this order:",
            *(f"  {command}" for command in (*by_hand, launch)),
        ]
    if not validation.ok:
        return ["It would refuse. Fix the sources of the unusable partitions, then materialize these again."]
    if planned.initial_fault:
        return [f"It would refuse: {planned.initial_fault}."]
    if validation.stale and spec.on_stale_inputs == "refuse":
        return ["It would refuse: `on_stale_inputs: refuse` forbids stale inputs."]
    if planned.is_as_trained:
        return [
            "It was trained and evaluated before, and no value that its training reads changed since. A launch reuses",
            f"the finished training and repeats only snapshot and evaluation. Run it: {launch}",
        ]
    how = f"{spec.training.workers} processes, up to {spec.training.epochs} epochs"
    return [
        *([_why_again(planned)] if planned.done else ()),
        f"It would run validate_inputs → snapshot → train ({how}) → evaluate → register.",
        f"Run it: {launch}",
    ]


def _why_again(planned: "LaunchPlan") -> str:
    """Return the reason for which a trained partition would be trained again."""
    choice = planned.chosen.choice if planned.chosen is not None else None
    if planned.has_its_settings:
        return "Values that its training reads changed since it was trained, so it would train again."
    now, before = choice.source if choice is not None else "", planned.trained_with
    if now == before:
        return "Its settings, code or columns changed since it was trained, so it would train again."
    names = [f"study {one[:12]}" if one else "the declaration" for one in (before, now)]
    return (
        f"Its hyperparameters are from {names[0]}, and those of now from {names[1]}, so it would train again."
    )


_READERS: "Mapping[ReadBy, str]" = {
    "training": "the training reads them",
    "evaluation": "only the evaluation reads them",
    "nothing": "neither training nor evaluation reads them",
}


def _in_words(change: "ColumnChange") -> str:
    read = _READERS[change.read_by]
    return f"{name_some(change.keys)}: {name_some(change.columns)} changed since the last training; {read}"
