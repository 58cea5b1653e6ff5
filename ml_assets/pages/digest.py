"""Digest of a UTC day for people: trained, decided, waiting, late, spent, each with the next command; what is live.

Here: the facts, from ledger and MLflow, and the page of a digest. Not here: storing and sending it
(`assets.digest`), the decisions (`release.promotion`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any

from ml_assets.foundation.links import report_name
from ml_assets.foundation.reports.page import Actions, Bullets, Chapter, Paragraph, WrittenPage
from ml_assets.model.release.history import lines
from ml_assets.model.release.rules import Rules
from ml_assets.model.steps.retraining import requests_since
from ml_assets.model.steps.spec import PipelineSpec
from resources.artifacts import ArtifactsError
from resources.ledger import (
    Archival,
    Decision,
    Demotion,
    EvaluationRow,
    Promotion,
    Review,
    VerdictRow,
    author_in_words,
)
from resources.platform import Platform
from resources.tracking.mlflow_client import TrackerError
from resources.tracking.tracker import EndedRun
from resources.words import counted

if TYPE_CHECKING:
    from ml_assets.model.release.registry import RegisteredVersion

SPENT = ("worker_hours", "gpu_hours", "cost")
"""Metrics of a training that the digest adds up."""


@dataclass(frozen=True, kw_only=True)
class Subjects:
    """Declared models and tables, as far as a digest needs them."""

    models: Mapping[str, Rules] = field(default_factory=dict[str, Rules])
    """Model → the rules of its releases."""
    tables: tuple[str, ...] = ()
    """Ids of the tables."""
    fresh_within: Mapping[str, timedelta] = field(default_factory=dict[str, timedelta])
    """Table or model that declares `freshness` → greatest age of its newest result."""

    def only(self, model: str) -> "Subjects":
        """Return the subjects of a digest about one model, without tables."""
        fresh = {name: age for name, age in self.fresh_within.items() if name == model}
        return Subjects(models={model: self.models[model]}, fresh_within=fresh)


def release_facts(spec: PipelineSpec) -> dict[str, Any]:
    """Return the rules of a pipeline's releases as JSON values, for `Rules`."""
    return spec.rules.model_dump(mode="json", exclude_defaults=True)


def subjects_from(
    releases: Mapping[str, Mapping[str, Any]], tables: Sequence[str], fresh_within: Mapping[str, timedelta]
) -> Subjects:
    """Return the subjects of declarations; `releases` is model → `release_facts`."""
    models = {name: Rules.model_validate(facts) for name, facts in releases.items()}
    return Subjects(models=models, tables=tuple(tables), fresh_within=fresh_within)


@dataclass(frozen=True, kw_only=True)
class Line:
    """One fact with the command that comes next; empty if there is nothing to do."""

    what: str
    next: str = ""


@dataclass(frozen=True, kw_only=True)
class EndedLaunch:
    """Launch of a table or a model that ended, after all its repetitions."""

    subject: str
    """Model, or id of a table."""
    partition: str
    """Partition or range, as `ml-assets launch` takes it; empty without partitions."""
    status: str
    """`completed`, `failed`, `refused` (its inputs were missing or rejected) or `canceled`."""
    why: str
    """Reason of a failure or refusal, one line."""
    is_scheduled_training: bool
    """True if the schedule of a model requested it."""

    @property
    def line(self) -> Line:
        """Return the outcome, and the command that launches it again."""
        target = " ".join(filter(None, (self.subject, self.partition)))
        why = f": {self.why}" if self.why else ""
        was = "was " if self.status in ("refused", "canceled") else ""
        return Line(what=f"{target} {was}{self.status}{why}", next=f"ml-assets launch {target}")


@dataclass(frozen=True, kw_only=True)
class ScheduledShare:
    """Scheduled trainings of a model that ended, each with its repetitions, and those of them that completed."""

    model: str
    completed: int
    ended: int

    @property
    def share(self) -> float:
        """Share that completed, 0–1."""
        return self.completed / self.ended

    @property
    def says(self) -> str:
        """Sentence for people."""
        done = f"{self.completed} of {self.ended}"
        return f"{self.model}: {done} scheduled trainings completed ({self.share:.0%})"


@dataclass(frozen=True, kw_only=True)
class Digest:
    """Facts of one UTC day. Commands and waiting versions are those of the moment at which it was made."""

    day: date
    trained: tuple[Line, ...]
    """Trainings that ended, with worker hours and cost."""
    evaluated: tuple[Line, ...]
    """Evaluations; a rejection names each failed rule with its margin."""
    decided: tuple[Line, ...]
    """Promotions, rollbacks, demotions, archivals and reviews, with author and reason."""
    failed: tuple[Line, ...]
    """Launches of models and tables that failed, were refused or canceled, with the reason."""
    scheduled: tuple[Line, ...]
    """Share of the scheduled trainings that completed, for each model."""
    requested: tuple[Line, ...]
    """Trainings that live performance requested, with the broken limit."""
    waiting: tuple[Line, ...]
    """Versions that wait for an approval."""
    rejected: tuple[Line, ...]
    """Partitions whose rows were rejected on that day and still are."""
    late: tuple[Line, ...]
    """Tables and models older than their `freshness` allows, at the end of the day."""
    spent: Mapping[str, float]
    """Sum of each of `SPENT` that a training recorded."""
    missing: tuple[str, ...]
    """Reasons for which the digest is incomplete."""

    @property
    def needs_a_person(self) -> int:
        """Number of lines about which a person should do something."""
        unfinished = [line for line in self.trained if line.next]
        others = (self.failed, self.waiting, self.rejected, self.late)
        return len(unfinished) + sum(map(len, others))

    @property
    def headline(self) -> str:
        """Sentence for someone who reads nothing else."""
        told = (
            (self.failed, "failed"),
            (self.trained, "trained"),
            (self.evaluated, "evaluated"),
            (self.decided, "decided"),
            (self.requested, "retrainings requested"),
            (self.waiting, "waiting"),
            (self.rejected, "rejected partitions"),
            (self.late, "late"),
        )
        return ", ".join(f"{len(lines)} {name}" for lines, name in told if lines) or "Nothing happened."

    def to_json(self) -> dict[str, Any]:
        """Return the digest as JSON values, with its headline in `text`."""
        return {"text": f"{self.day}: {self.headline}", **asdict(self), "day": self.day.isoformat()}


def bounds_of(day: date) -> tuple[datetime, datetime]:
    """Return the begin and the end of a UTC day."""
    first = datetime.combine(day, time.min, UTC)
    return first, first + timedelta(days=1)


def digest_of(
    platform: Platform,
    subjects: Subjects,
    day: date,
    launches: Sequence[EndedLaunch],
    now: datetime | None = None,
) -> Digest:
    """Return the digest of a UTC day. It changes nothing. `launches`: those that ended on that day.

    Raises `LedgerError`; without MLflow or artifacts it is incomplete.
    """
    first, until = bounds_of(day)
    launches = [one for one in launches if one.subject in subjects.models or one.subject in subjects.tables]
    moment = min(until, now or datetime.now(UTC))
    missing: dict[str, None] = {}

    def asked(ask: "Callable[[], Sequence[Any]]") -> "Sequence[Any]":
        try:
            return ask()
        except TrackerError as error:
            missing[f"MLflow did not answer: {error}"] = None
        except ArtifactsError as error:
            missing[f"the artifacts did not answer: {error}"] = None
        return ()

    evaluated: list[Line] = []
    decided: list[Line] = []
    waiting: list[Line] = []
    requested: list[Line] = []
    late: list[Line] = []
    runs: list[tuple[str, EndedRun]] = []
    for model, rules in subjects.models.items():
        decisions = platform.ledger.models.decisions(model)
        of_the_day = [one for one in decisions if first <= one.at < until]
        waits = asked(lambda model=model, rules=rules: waiting_for_approval(platform, model, rules))
        waiting += [_waits(model, version.number, row) for version, row in waits]
        evaluated += [_evaluated(one) for one in of_the_day if isinstance(one, EvaluationRow)]
        decided += _decided(model, decisions, of_the_day)
        requested += [
            Line(
                what=f"{model} {one.partition} is trained again because of {one.reason}",
                next=f"ml-assets history {model}",
            )
            for one in asked(lambda model=model: requests_since(platform.artifacts, model, first))
            if one.at < until
        ]
        ended = asked(lambda model=model: platform.tracker.ended(model, first, until))
        runs += [(model, run) for run in ended]
        if (age := subjects.fresh_within.get(model)) is not None:
            results = [
                one.at for one in decisions if isinstance(one, EvaluationRow) and one.status == "blessed"
            ]
            late += _late(model, "blessed evaluation", results, age, moment)
    rejected: list[Line] = []
    for table in subjects.tables:
        rejections = platform.ledger.rejections(table).values()
        rejected += [_rejected(one) for one in rejections if first <= one.at < until]
        if (age := subjects.fresh_within.get(table)) is not None:
            usable = platform.ledger.newest_usable(table, moment)
            late += _late(table, "usable partition", [usable] if usable else [], age, moment)
    return Digest(
        day=day,
        trained=tuple(_trained(model, run) for model, run in runs),
        evaluated=tuple(evaluated),
        decided=tuple(decided),
        failed=tuple(one.line for one in launches if one.status != "completed"),
        scheduled=tuple(_shares([one for one in launches if one.is_scheduled_training])),
        requested=tuple(requested),
        waiting=tuple(waiting),
        rejected=tuple(rejected),
        late=tuple(late),
        spent={
            name: sum(run.metrics[name] for _, run in runs if name in run.metrics)
            for name in SPENT
            if any(name in run.metrics for _, run in runs)
        },
        missing=tuple(missing),
    )


def _shares(launches: Sequence[EndedLaunch]) -> Iterator[Line]:
    for model in sorted({one.subject for one in launches}):
        ended = [one for one in launches if one.subject == model]
        done = sum(one.status == "completed" for one in ended)
        yield Line(what=ScheduledShare(model=model, completed=done, ended=len(ended)).says)


def _waits(model: str, number: int, row: EvaluationRow) -> Line:
    return Line(
        what=f"{model} version {number} waits for an approval: {row.summary}",
        next=f"ml-assets approve {model} {number} --reason '…'",
    )


def _evaluated(row: EvaluationRow) -> Line:
    failed = [
        f"{rule.rule} ({rule.slice}): {rule.found}" + (f"; {rule.would_pass}" if rule.would_pass else "")
        for rule in row.rules
        if rule.result in ("failed", "undecided")
    ]
    why = f"is {row.status}: {'; '.join(failed)}" if failed else f"– {row.summary}"
    return Line(what=f"{row.model} {row.partition} {why}", next=f"ml-assets history {row.model}")


def _decided(model: str, decisions: Sequence[Decision], of_the_day: Sequence[Decision]) -> Iterator[Line]:
    """Yield a line for each decision of a person, in the words of `ml-assets history`."""
    of_persons = (Promotion, Demotion, Archival, Review)
    places = {one.place for one in of_the_day if isinstance(one, of_persons)}
    held = [one.place for one in decisions if isinstance(one, Promotion) and one.alias == "production"]
    said = [line for line in lines(decisions) if not line.startswith("    ")]
    for one, line in zip(decisions, said, strict=True):
        if one.place not in places:
            continue
        is_live = isinstance(one, Promotion) and one.place == max(held, default=0)
        yield Line(
            what=f"{model}: {' '.join(line.split()[3:])}",  # without date, time and zone
            next=f"ml-assets rollback {model} --reason '…'" if is_live else f"ml-assets history {model}",
        )


def _trained(model: str, run: EndedRun) -> Line:
    figures = [f"{run.metrics[name]:.3g} {name.replace('_', ' ')}" for name in SPENT if name in run.metrics]
    taken = f": {', '.join(figures)}" if figures else ""
    is_done = run.status == "FINISHED"
    return Line(
        what=f"{model} {run.name} {run.status.lower()}{taken}",
        next="" if is_done or run.is_trial else f"ml-assets launch {model} {run.name}",
    )


def _rejected(row: VerdictRow) -> Line:
    return Line(
        what=f"{row.table} {row.key} was rejected ({row.rows:,} rows)",
        next=f"ml-assets launch {row.table} {row.key}",
    )


def _late(
    name: str, what: str, results: Sequence[datetime], age: timedelta, moment: datetime
) -> Iterator[Line]:
    known = [at for at in results if at <= moment]
    if known and moment - max(known) <= age:
        return
    newest = f"newest {what} is of {max(known):%Y-%m-%d %H:%M} UTC" if known else f"there is no {what}"
    hours = age / timedelta(hours=1)
    yield Line(
        what=f"{name} is late: {newest}, {hours:g} h are allowed", next=f"ml-assets launch {name} DATE"
    )


def digest_page(digest: Digest) -> WrittenPage:
    """Return the page: first what needs a person, then what happened."""
    chapters = (
        ("Failed or refused", digest.failed),
        ("Waiting for approval", digest.waiting),
        ("Late", digest.late),
        ("Rejected partitions", digest.rejected),
        ("Evaluations", digest.evaluated),
        ("Decisions", digest.decided),
        ("Retrainings requested", digest.requested),
        ("Trainings", digest.trained),
        ("Scheduled trainings", digest.scheduled),
    )
    needs = digest.needs_a_person
    return WrittenPage(
        title=f"Digest of {digest.day}",
        about="0:00 to 24:00 UTC · "
        + (f"{counted(needs, 'line')} for a person to act on" if needs else "nothing needs a person"),
        headline=digest.headline,
        tone="undecided" if needs or digest.missing else "blessed",
        chapters=(
            *(Chapter(title, (_actions(lines),)) for title, lines in chapters if lines),
            *([Chapter("Spent", (Paragraph(_spent(digest)),))] if digest.spent else []),
            *([Chapter("Not known", (Bullets(digest.missing),))] if digest.missing else []),
        ),
    )


def _actions(lines: tuple[Line, ...]) -> Actions:
    return Actions(tuple((line.what, line.next) for line in lines))


def _spent(digest: Digest) -> str:
    return ", ".join(f"{value:.3g} {name.replace('_', ' ')}" for name, value in digest.spent.items())


@dataclass(frozen=True, kw_only=True)
class ProductionFacts:
    """Newest decision about the version in production."""

    place: int
    """Place of the decision in the ledger."""
    headline: str
    facts: dict[str, str]
    """Name → text: version, time, person, reason, window of its data."""
    report: str
    """Folder of the report of its evaluation among the artifacts; empty if nothing is in production."""
    is_live: bool


def production_of(platform: Platform, model: str) -> ProductionFacts | None:
    """Return what the newest promotion, rollback or demotion made of production; None before the first."""
    log = platform.ledger.models
    promotions = [one for one in log.promotions(model) if one.alias == "production"]
    if not promotions:
        return None
    newest = promotions[-1]
    ended = newest.demotion
    decision = newest if ended is None else ended
    decided = {
        "since": decision.at.isoformat(timespec="seconds"),
        "by": author_in_words(decision),
        "reason": decision.reason,
    }
    if ended is not None:
        return ProductionFacts(
            place=ended.place,
            headline=f"nothing is in production: version {newest.version} was demoted",
            facts=decided,
            report="",
            is_live=False,
        )
    row = log.evaluation(newest.evaluation_digest)
    verb = "promoted" if newest.returns_to is None else "rolled back"
    window = {} if row is None else {"data": f"{row.trained_on.first} to {row.trained_on.last}"}
    return ProductionFacts(
        place=newest.place,
        headline=f"version {newest.version} is in production: {verb}",
        facts={"version": newest.version, **decided, **window, "bundle": newest.bundle_digest},
        report="" if row is None else report_name(row.model, row.partition, row.evaluation_digest),
        is_live=True,
    )


def newest_registered(platform: Platform, model: str, rules: Rules) -> int | None:
    """Return the number of the newest version in MLflow, with which `waiting_for_approval` changes beside the ledger.

    None without versions, if `rules` ask for no approval, or while MLflow is away.
    """
    if rules.approval is None:
        return None
    from ml_assets.model.release.releases import registry_of

    with suppress(TrackerError):
        return registry_of(platform).newest_number(model)
    return None


def waiting_for_approval(
    platform: Platform, model: str, rules: Rules
) -> "Sequence[tuple[RegisteredVersion, EvaluationRow]]":
    """Return the versions that wait for an approval, newest data first; empty if `rules` ask for none."""
    if rules.approval is None:
        return []
    from ml_assets.model.release.releases import releases_of
    from ml_assets.model.release.reviews import waiting

    return waiting(releases_of(platform), model, rules)
