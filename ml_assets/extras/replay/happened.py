"""Events of a replay: one for each decision of the platform, as the ledger and Dagster record it.

Nothing here decides or guesses: each event is a row of the ledger, or a run that failed. Not here: how lines look
(`cli.replay`).
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import dagster as dg

from ml_assets.components.metadata import partition_of
from ml_assets.components.sensors.ended_runs import reason_of, subject_of
from ml_assets.dagster_host.event_log import NOT_FINISHED_STATUSES
from ml_assets.data.tables.publish.audit import verdict_of
from ml_assets.data.validation.drift_rule import RULE as DRIFT
from ml_assets.data.validation.quarantine import QUARANTINED
from ml_assets.data.validation.verdict import Finding, Verdict
from ml_assets.extras.replay.pipeline import FEATURES, FLIGHTS, MODEL
from ml_assets.foundation.links import TABLES, report_name, report_page, run_url
from resources.addresses import Address
from resources.ledger import EvaluationRow, Promotion, VerdictRow
from resources.platform import Platform
from resources.words import counted, name_some

Kind = Literal[
    "day landed",
    "day rejected",
    "quarantine",
    "drift",
    "features built",
    "model blessed",
    "model refused",
    "model promoted",
    "run failed",
]
_MOST_RUNS = 200
_SHOWN = 3
"""Most broken rules of rows in quarantine to name."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """Decision of the platform, or a failed run."""

    kind: Kind
    about: str
    """Table or model, and its partition."""
    said: str = ""
    """Reason or figure."""
    page: str = ""
    """Address of its page; empty without one."""


class Happened:
    """Events since the last look. Also which days landed, which features are built, and which models are decided."""

    def __init__(self, platform: Platform, instance: dg.DagsterInstance, url: str) -> None:
        """`url`: address of the pages. What happened before is no news."""
        self._platform, self._instance, self._url = platform, instance, url
        ledger = platform.ledger
        self._places = {table: ledger.newest_change(table) for table in (FLIGHTS, FEATURES)}
        self._numbers: Counter[tuple[str, str]] = Counter()
        self._decided = max((one.place for one in ledger.models.decisions(MODEL)), default=0)
        self._since = datetime.now(UTC)
        self._failed: set[str] = set()
        self._rejected_in: set[str] = set()
        self.verdicts: dict[tuple[str, str], VerdictRow] = {}
        """(table, key) → newest verdict that came since."""
        self.evaluations: dict[str, EvaluationRow] = {}
        """Partition → newest evaluation that came since."""
        self.counts: Counter[Kind] = Counter()
        """Kind → events so far."""

    def look(self) -> Iterator[Event]:
        """Yield the events since the last look, tables first."""
        for event in (*self._of_tables(), *self._of_model(), *self._of_failures()):
            self.counts[event.kind] += 1
            yield event

    def is_usable(self, table: str, key: str) -> bool:
        """Return True if rows of the partition landed since the begin, and none of a later reading were rejected."""
        row = self.verdicts.get((table, key))
        return row is not None and not row.blocks

    def is_rejected(self, table: str, key: str) -> bool:
        """Return True if the newest rows of the partition were rejected."""
        row = self.verdicts.get((table, key))
        return row is not None and row.blocks

    def _of_tables(self) -> Iterator[Event]:
        ledger = self._platform.ledger
        for table, place in self._places.items():
            now = ledger.newest_change(table)
            if now == place:
                continue
            histories = ledger.histories(table, ledger.changed_since(table, place))
            self._places[table] = now
            for key in sorted(histories):
                for row in histories[key]:
                    if row.number > self._numbers[table, key]:
                        self._numbers[table, key] = row.number
                        self.verdicts[table, key] = row
                        yield from self._of_verdict(row)

    def _of_verdict(self, row: VerdictRow) -> Iterator[Event]:
        verdict = verdict_of(row)
        about = f"{row.table} {row.key}"
        if row.blocks:
            self._rejected_in.add(row.run_id)
            why = "; ".join(_in_words(one) for one in verdict.findings if one.blocks)
            yield Event(kind="day rejected", about=about, said=why, page=self._run(row.run_id))
            return
        page = f"{self._url}/{TABLES}/{row.table}/{row.key}"
        if row.table == FEATURES:
            yield Event(kind="features built", about=about, said=f"{row.rows:,} rows")
        else:
            yield Event(kind="day landed", about=about, said=f"{row.rows:,} rows", page=page)
        if verdict.quarantined:
            yield Event(kind="quarantine", about=about, said=_set_aside(verdict), page=page)
        if drifts := [one for one in verdict.findings if one.rule == DRIFT]:
            most, *others = drifts
            more = f"; and {counted(len(others), 'more column')}" if others else ""
            said = f"{most.column}: {most.measured}"
            yield Event(kind="drift", about=about, said=f"{said}{more}", page=page)

    def _of_model(self) -> Iterator[Event]:
        for row in self._platform.ledger.models.decisions(MODEL):
            if row.place <= self._decided:
                continue
            self._decided = row.place
            if isinstance(row, EvaluationRow):
                self.evaluations[row.partition] = row
                kind: Kind = "model blessed" if row.status == "blessed" else "model refused"
                report = report_page(
                    Address(self._url), report_name(MODEL, row.partition, row.evaluation_digest)
                )
                said = _why(row) if kind == "model refused" else row.summary
                yield Event(kind=kind, about=f"{MODEL} {row.partition}", said=said, page=self._url + report)
            elif isinstance(row, Promotion):
                yield Event(
                    kind="model promoted",
                    about=f"{MODEL} version {row.version}",
                    said=f"{row.alias}, {row.reason}",
                    page=f"{self._url}/assets/{MODEL}/production",
                )

    def _of_failures(self) -> Iterator[Event]:
        """Yield the runs that failed for another reason than a rejected day, which has its own event."""
        failed = dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE], updated_after=self._since)
        for record in self._instance.get_run_records(failed, limit=_MOST_RUNS):
            run = record.dagster_run
            if run.run_id in self._failed:
                continue
            self._failed.add(run.run_id)
            if run.run_id not in self._rejected_in:
                about = f"{subject_of(run) or run.job_name} {partition_of(run)}"
                said, _ = reason_of(self._instance, run.run_id)
                yield Event(kind="run failed", about=about, said=said, page=self._run(run.run_id))

    def is_idle(self) -> bool:
        """Return True if no run is in progress or waits for one."""
        return not self._instance.get_runs_count(dg.RunsFilter(statuses=NOT_FINISHED_STATUSES))

    def has_ended(self, run_id: str) -> bool:
        """Return True if the run is over."""
        run = self._instance.get_run_by_id(run_id)
        return run is not None and run.is_finished

    def _run(self, run_id: str) -> str:
        return run_url(Address(self._url), run_id)


def _in_words(one: Finding) -> str:
    column = f"{one.column}: " if one.column else ""
    return f"{column}{one.measured}, expected {one.limit}"


def _set_aside(verdict: Verdict) -> str:
    """Return the number of rows that were set aside, and the rules that they break."""
    counted = [one.measured for one in verdict.findings if one.rule == QUARANTINED]
    broken = [
        f"{one.column or one.rule} is {one.measured}"
        for one in verdict.findings
        if one.rule not in (QUARANTINED, DRIFT)
    ]
    return f"{', '.join(counted)} set aside: {name_some(broken, _SHOWN)}"


def _why(row: EvaluationRow) -> str:
    """Return the decision, with each rule that failed; if none did, with each one that is undecided."""
    told = "failed" if any(one.result == "failed" for one in row.rules) else "undecided"
    rules = [f"{one.rule}: {one.found}" for one in row.rules if one.result == told]
    return f"{row.status}: {'; '.join(rules) or row.summary}"
