"""Study in Optuna's storage: the trial that runs next, and the ends of trials.

A trial is recorded before its training starts. So a study whose process was killed continues: a trial that had begun
keeps its number and its values, and a finished trial is not repeated. Optuna's samplers and pruners write notes of
their own while they decide. They do so in a copy of the study in memory, and each decision is one write to the storage:
a kill comes before it or after it. A failed trial that trains once more is another record in the storage, with the same
number and values. Not here: the training of a trial (`tuning.trials`), the choice among trials (`study_result`).
"""

import json
import math
import re
import uuid
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

import optuna
from optuna.storages import BaseStorage
from optuna.study import StudySummary
from optuna.trial import FrozenTrial, TrialState, create_trial

from ml_assets.extras.tuning.optuna_parts import (
    MeasuredTrial,
    ask,
    importances,
    pruner_of,
    sampler_of,
    with_fixed,
)
from ml_assets.extras.tuning.prior import Prior
from ml_assets.model.steps.search_space import VALIDATION_LOSS, Sampler, Scalar, TuningSection
from ml_assets.model.steps.study_metric import BY_LOSS, StudyMetric
from ml_assets.model.steps.study_result import KnownPoint, TrialOutcome
from resources.words import counted

_NUMBER, _OUTCOME = "number", "outcome"
"""User attributes of a trial in the storage: its number in the study, and how it ended."""
_DECIDED = "decided"
"""User attribute of a trial: the last epoch after which the pruner decided, whether it paused the trial there, and its
notes on the trial."""
_FAILED_BEFORE = "failed_before"
"""User attribute of a trial that trains once more: the reason of its failure before."""
_PRIOR = "prior"
"""User attribute of a study: the points that it began with."""
_LEARNING: tuple[Sampler, ...] = ("tpe", "GPSampler")
"""Samplers that draw near good trials."""
_DIFFERS = "differs"
"""User attribute of a study: its difference from the model's study before."""
_RAN = "ran/"
"""Prefix of the user attributes of a study, one a launch: when it began its first trial, and its last sign of life."""


@dataclass(frozen=True, kw_only=True)
class BegunTrial:
    """Trial whose training may start, or continue after a kill."""

    number: int
    """Number in the study, from 0."""
    parameters: Mapping[str, Scalar]
    """`hyperparameters.<key>` or `training.<key>` → value."""
    in_storage: int
    """Number in Optuna's storage, which counts a trial that trains once more again."""
    failed_before: str = ""
    """Reason of the failure after which it trains once more; empty if it did not fail."""


@dataclass(frozen=True, kw_only=True)
class StudyFacts:
    """Facts of a study, kept as its user attributes."""

    model: str
    partition: str
    snapshot: str
    """Digest."""
    decided_by: Mapping[str, str]
    """All that makes it another study than one before, for people: name → value."""


Turn = Callable[[], AbstractContextManager[None]]
"""Lock of a study. One thread of one process holds it at a time."""


class Study:
    """Study with a name. Several processes may continue it at once, and train the same trial at once.

    A process reads the record of a trial and writes to it within one turn: Optuna refuses each write to a trial that
    another process has ended meanwhile.
    """

    def __init__(
        self,
        storage: BaseStorage,
        name: str,
        section: TuningSection,
        seed: int,
        facts: StudyFacts,
        epochs: int,
        prior: Prior | None = None,
        turn: Turn = nullcontext,
        metric: StudyMetric = BY_LOSS,
    ) -> None:
        """Open the study `name`, or create it with `facts` as its attributes and with `prior`.

        `seed` decides all draws. `epochs` is the number of epochs of a trial whose values do not hold another. `turn`
        is needed if other processes may use the study. `metric` compares the trials.
        """
        self._section, self._seed, self._storage, self._turn = section, seed, storage, turn
        self._epochs, self._metric = epochs, metric
        self._study = optuna.create_study(
            storage=storage,
            study_name=name,
            direction=metric.direction,
            load_if_exists=True,
        )
        self.name = name
        self._id = storage.get_study_id_from_name(name)
        known = self._study.user_attrs
        if _DIFFERS not in known:
            before = _newest_before(storage, name, facts.model)
            # Fixed now: the newest result changes.
            self._study.set_user_attr(_PRIOR, (prior or Prior()).to_document())
            self._study.set_user_attr(_DIFFERS, "" if before is None else _differs(storage, before, facts))
        self.prior = Prior.from_document(self._study.user_attrs[_PRIOR])
        for key, value in {**asdict(facts), "metric": metric.name, "trials": self.most}.items():
            if known.get(key) != value:
                self._study.set_user_attr(key, value)
        self._launch, self._ran_from = f"{_RAN}{uuid.uuid4().hex}", 0.0
        self._to_repeat = self._failures_that_may_pass()
        """Numbers of failed trials that train once more in this launch."""

    def next(self, *, may_begin: bool = True, besides: Container[int | None] = ()) -> BegunTrial | None:
        """Return a trial that did not end; else repeat one whose failure may pass, or begin another; None if complete.

        Each launch repeats a failed trial once. Without `may_begin` no trial begins. `besides`: numbers of the trials
        that the caller runs already.
        """
        with self._turn():
            return self._next(may_begin=may_begin, besides=besides)

    def _next(self, *, may_begin: bool, besides: Container[int | None]) -> BegunTrial | None:
        begun = len(self._newest())
        for one in self._trials():
            if one.state == TrialState.RUNNING and one.user_attrs[_NUMBER] not in besides:
                return _begun(one)
        if not may_begin:
            return None
        if (repeated := self._repeated()) is not None:
            return repeated
        if begun >= self.most:
            return None
        combinations = list(self._section.space.points) if self._section.sampler == "grid" else None
        fixed = combinations or [one.parameters for one in self.prior.repeated]
        drawn = self._drawn(begun, fixed[begun] if begun < len(fixed) else None)
        return self._begin(drawn, {_NUMBER: begun})

    def _drawn(self, number: int, fixed: Mapping[str, Scalar] | None) -> FrozenTrial:
        """Return the values `fixed`, or those that the sampler draws for a trial, in a study that is only in memory.

        Each number has a sampler of its own, so a process that continues the study draws what the killed process would
        have drawn.
        """
        space, sampler = self._section.space, sampler_of(self._section, self._seed, number)
        if self._section.sampler == "QMCSampler" or fixed is not None:
            # A place in a sequence, whatever other trials came to. Optuna counts the places in the study.
            seen = optuna.create_study(direction="minimize")
            for _ in range(0 if fixed is not None else number):
                seen.tell(ask(seen, sampler, space), 0.0)
        else:
            seen = self._copy(self.inherited())
        asked = ask(seen, sampler if fixed is None else with_fixed(fixed, sampler), space)
        return seen.trials[asked.number]

    def _copy(
        self, points: Sequence[KnownPoint] = (), epoch: Mapping[int, int] | None = None
    ) -> optuna.Study:
        """Return a copy in memory of the newest record of each trial, in the order of their numbers, after `points`.

        `points` are no records of the study: a pruner would compare with them, and their losses could not move. The
        metric is a loss there, whatever its direction: pruners compare validation losses. `epoch`: number of a trial →
        last epoch that its copy has.
        """
        # The name decides the groups of hyperband.
        copy = optuna.create_study(direction="minimize", study_name=f"{self._seed}")
        for point in points:
            asked = ask(
                copy,
                with_fixed(point.parameters, sampler_of(self._section, self._seed, 0)),
                self._section.space,
            )
            copy.tell(asked, self._metric.loss_of(point))
        for number, one in sorted(self._newest().items()):
            *_, notes = one.user_attrs.get(_DECIDED, ({},))
            last = math.inf if epoch is None else epoch.get(number, math.inf)
            copy.add_trial(
                create_trial(
                    state=one.state,
                    values=None if one.values is None else [self._metric.sign * one.values[0]],
                    params=one.params,
                    distributions=one.distributions,
                    intermediate_values={
                        at: loss for at, loss in one.intermediate_values.items() if at <= last
                    },
                    system_attrs=notes,
                )
            )
        return copy

    def should_pause(
        self, trial: BegunTrial, epoch: int, validation_loss: float, *, is_warm: bool = True
    ) -> bool:
        """Record the lowest validation loss of `trial` up to `epoch`. True if the pruner stops the trial there.

        Without `is_warm` the trial is in its warm-up, and the pruner is not asked.

        A process that continues the trial reads its epochs again. So the first loss of an epoch and the first decision
        after it count. If another process has ended the trial meanwhile, nothing is recorded, and a trial that it
        paused is paused here, too.
        """
        at = self._record_of(trial)
        with self._turn():
            known = self._storage.get_trial(at)
            decided, paused, _ = known.user_attrs.get(_DECIDED, (0, False, {}))
            if known.state.is_finished():
                return known.state == TrialState.PRUNED and epoch >= decided
            if epoch not in known.intermediate_values:
                self._storage.set_trial_intermediate_value(at, epoch, validation_loss)
            if epoch > decided:
                decided, (paused, notes) = epoch, self._decided(trial.number, epoch, is_warm=is_warm)
                self._storage.set_trial_user_attr(at, _DECIDED, (decided, paused, notes))
            return paused and epoch == decided

    def _decided(self, number: int, epoch: int, *, is_warm: bool) -> tuple[bool, Mapping[str, Any]]:
        """Return True if the pruner stops the trial after `epoch`, and the pruner's notes on the trial."""
        if self._section.pruner == "none" or not is_warm:
            return False, {}
        copy = self._copy(epoch={number: epoch})
        decider = pruner_of(self._section, self._epochs)
        pauses = bool(decider.prune(copy, copy.trials[number]))  # some return a value of NumPy
        return pauses, dict(copy.trials[number].system_attrs)

    def end(self, trial: BegunTrial, outcome: TrialOutcome) -> None:
        """Record the end of `trial`. The first record of a trial counts."""
        at = self._record_of(trial)
        with self._turn():
            if self._storage.get_trial(at).state != TrialState.RUNNING:
                return
            self._storage.set_trial_user_attr(at, _OUTCOME, json.dumps(asdict(outcome)))
            if outcome.state == "finished":
                self._study.tell(trial.in_storage, self._metric.value_of(outcome))
            else:
                state = TrialState.PRUNED if outcome.state == "paused" else TrialState.FAIL
                self._study.tell(trial.in_storage, state=state)

    @property
    def differs(self) -> str:
        """Difference from the model's study before this one, in a sentence; empty for its first study."""
        return self._study.user_attrs[_DIFFERS]

    @property
    def most(self) -> int:
        """Number of trials with which the study is complete."""
        section = self._section
        return section.trials if section.sampler != "grid" else len(list(section.space.points))

    def note_alive(self, at: float) -> None:
        """Record that this process runs trials at `at`, in seconds since the epoch."""
        self._ran_from = self._ran_from or at
        self._study.set_user_attr(self._launch, (self._ran_from, at))

    @property
    def seconds(self) -> float:
        """Wall time in which processes ran trials of this study, up to their last sign of life."""
        return covered_seconds(self._spans)

    @property
    def began(self) -> float:
        """Time of the first sign of life of a process that ran trials, in seconds since the epoch; inf if none did."""
        return min((start for start, _ in self._spans), default=math.inf)

    @property
    def _spans(self) -> list[tuple[float, float]]:
        """Start and last sign of life of each launch."""
        spans = [span for name, span in self._study.user_attrs.items() if name.startswith(_RAN)]
        return [(start, end) for start, end in spans]

    def inherited(self) -> list[KnownPoint]:
        """Return the points of earlier studies that the sampler sees, best first.

        Other rows have another loss, even of equal values. So the metric of each point is moved by the mean difference
        of the repeated trials, which trained on both. Only finished trials count: losses of other epochs are higher.
        """
        if self._section.sampler not in _LEARNING:
            return []
        metric = self._metric
        now = {one.number: metric.loss_of(one) for one in self.outcomes() if one.state == "finished"}
        moves = [
            loss - metric.require_loss_of(one)
            for number, one in enumerate(self.prior.repeated)
            if (loss := now.get(number)) is not None
        ]
        move = metric.sign * sum(moves) / len(moves) if moves else 0.0
        if metric.is_validation_loss:
            return [replace(one, validation_loss=one.validation_loss + move) for one in self.prior.seen]
        return [replace(one, value=(one.value or 0.0) + move) for one in self.prior.seen]

    def outcomes(self) -> list[TrialOutcome]:
        """Return the ends of all trials, by number."""
        newest = self._newest(_OUTCOME)
        return [
            replace(
                TrialOutcome.of(json.loads(newest[at].user_attrs[_OUTCOME])),
                curve=tuple(sorted(newest[at].intermediate_values.items())),
            )
            for at in sorted(newest)
        ]

    def importances(self) -> dict[str, float]:
        """Return parameter → its share of the importance for the metric, largest first; empty for few trials."""
        drawn = self._newest()
        return importances(
            [
                MeasuredTrial(
                    parameters=drawn[one.number].params,
                    distributions=drawn[one.number].distributions,
                    loss=loss,
                )
                for one in self.outcomes()
                if (loss := self._metric.loss_of(one)) is not None
            ]
        )

    def _record_of(self, trial: BegunTrial) -> int:
        """Return the id of a trial's record in the storage."""
        return self._storage.get_trial_id_from_study_id_trial_number(self._id, trial.in_storage)

    def _trials(self) -> "list[FrozenTrial]":
        return self._study.get_trials(deepcopy=False)

    def _newest(self, attribute: str = _NUMBER) -> dict[int, FrozenTrial]:
        """Return number → its newest record that has `attribute`."""
        records = sorted(self._trials(), key=lambda one: one.number)
        return {
            one.user_attrs[_NUMBER]: one for one in records if {_NUMBER, attribute} <= one.user_attrs.keys()
        }

    def _failures_that_may_pass(self) -> list[int]:
        """Return the numbers of trials that failed, but not because of their values."""
        newest = self._newest()
        return [
            one.number
            for one in self.outcomes()
            if one.may_pass and newest[one.number].state == TrialState.FAIL
        ]

    def _repeated(self) -> BegunTrial | None:
        """Begin the next failed trial of this launch again; return None if there is none."""
        again = set(self._failures_that_may_pass())  # without those that another process repeats
        while self._to_repeat:
            if (number := self._to_repeat.pop(0)) in again:
                failed = self._newest()[number]
                attributes = dict(failed.user_attrs)
                why = json.loads(attributes.pop(_OUTCOME))["why"]
                return self._begin(failed, attributes | {_FAILED_BEFORE: why})
        return None

    def _begin(self, like: FrozenTrial, attributes: Mapping[str, Any]) -> BegunTrial:
        """Begin a record with the values and the losses so far of `like`: drawn values, or a trial that ended."""
        again = create_trial(
            state=TrialState.RUNNING,
            params=like.params,
            distributions=like.distributions,
            intermediate_values=like.intermediate_values,
            user_attrs=dict(attributes),
        )
        return _begun(self._storage.get_trial(self._storage.create_new_trial(self._id, again)))


def is_begun(storage: BaseStorage, name: str) -> bool:
    """True if the storage has the study `name` with its prior."""
    try:
        return _DIFFERS in storage.get_study_user_attrs(storage.get_study_id_from_name(name))
    except KeyError:
        return False


def _newest_before(storage: BaseStorage, name: str, model: str) -> StudySummary | None:
    """Return the newest other study of the model that has begun a trial."""
    others = [
        one
        for one in optuna.get_all_study_summaries(storage, include_best_trial=False)
        if one.user_attrs.get("model") == model and one.study_name != name and one.datetime_start is not None
    ]
    return max(
        others, key=lambda one: one.datetime_start.timestamp() if one.datetime_start else 0.0, default=None
    )


def _differs(storage: BaseStorage, before: StudySummary, facts: StudyFacts) -> str:
    """Return how the study before differs, and whether trials of it are left."""
    known = before.user_attrs
    # Studies of a release without other metrics do not name theirs.
    changes = difference({"metric": VALIDATION_LOSS} | known["decided_by"], facts.decided_by)
    said = f"it differs from study {before.study_name}: {changes}"
    trials = storage.get_all_trials(storage.get_study_id_from_name(before.study_name), deepcopy=False)
    begun = sum(_NUMBER in one.user_attrs for one in trials)
    if begun >= known["trials"]:
        return said
    return (
        f"{said}. That study stays as it is, with {begun} of {counted(known['trials'], 'trial')}, and "
        "continues when nothing differs from it"
    )


def _begun(trial: FrozenTrial) -> BegunTrial:
    return BegunTrial(
        number=trial.user_attrs[_NUMBER],
        parameters=dict(trial.params),
        in_storage=trial.number,
        failed_before=trial.user_attrs.get(_FAILED_BEFORE, ""),
    )


def covered_seconds(spans: Iterable[tuple[float, float]]) -> float:
    """Return the seconds that lie in at least one of `spans`, pairs of a start and an end in seconds.

    Two processes that run the same study at the same time use the wall clock once.
    """
    covered, until = 0.0, -math.inf
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return covered


_MOST_CHANGES = 8
"""Changes that a sentence lists."""
_DIGEST = re.compile(r"[0-9a-f]{32,}")


def difference(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Return each fact that differs, with its value before and now, in the order of `now`; empty if none does."""
    names = [*now, *(name for name in before if name not in now)]
    changes = [
        _changed_fact(name, before.get(name), now.get(name))
        for name in names
        if before.get(name) != now.get(name)
    ]
    more = len(changes) - _MOST_CHANGES
    return "; ".join(changes[:_MOST_CHANGES]) + (f"; and {more} more" if more > 0 else "")


def _changed_fact(name: str, before: str | None, now: str | None) -> str:
    if now is None:
        return f"{name} was removed ({_short(before or '')})"
    if before is None:
        return f"{name} is new ({_short(now)})"
    return f"{name} changed from {_short(before)} to {_short(now)}"


def _short(value: str) -> str:
    """Return a value with digests cut to the length that people compare."""
    return _DIGEST.sub(lambda digest: digest[0][:12], value)
