"""News of all runs, whoever starts them: a line when one starts, ends or fails, and for each version it registers."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import dagster as dg

from ml_assets.components.behind import declared_as
from ml_assets.components.metadata import partition_of
from ml_assets.context.launch import why_it_failed
from resources.words import name_some

_WORDS = {
    dg.DagsterRunStatus.STARTED: "started",
    dg.DagsterRunStatus.SUCCESS: "done",
    dg.DagsterRunStatus.FAILURE: "failed",
    dg.DagsterRunStatus.CANCELED: "canceled",
}
_AT_ONCE = 200
"""Most runs to look at in one poll; the rest comes with the next one."""
_REGISTERED = "registered_model"
_OVERLAP = timedelta(seconds=1)
"""Part of the last poll that is asked for again: another process may have written a moment of it later."""


class RunNews:
    """Runs whose state changed since the poll before."""

    def __init__(self, instance: dg.DagsterInstance, since: datetime) -> None:
        """`since`: moment with a time zone. What happened before is no news."""
        self._instance = instance
        self._since = since
        self._told: dict[str, dg.DagsterRunStatus] = {}

    def lines(self) -> Iterator[str]:
        """Yield a line for each event that matters, with the local time."""
        for run, moment in self.changed():
            yield from self._about(run, moment)

    def changed(self) -> Iterator[tuple[dg.DagsterRun, float | None]]:
        """Yield each run that started or ended, with that moment in seconds since 1970, if Dagster knows it."""
        records = self._instance.get_run_records(
            dg.RunsFilter(updated_after=self._since),
            limit=_AT_ONCE,
            order_by="update_timestamp",
            ascending=True,
        )
        told, self._told = self._told, {}
        for record in records:
            run = record.dagster_run
            self._since = max(self._since, record.update_timestamp.replace(tzinfo=UTC) - _OVERLAP)
            self._told[run.run_id] = run.status
            if run.status in _WORDS and told.get(run.run_id) != run.status:
                yield run, record.end_time or record.start_time

    def _about(self, run: dg.DagsterRun, moment: float | None) -> Iterator[str]:
        happened = datetime.now(UTC) if moment is None else datetime.fromtimestamp(moment, UTC)
        at = happened.astimezone()  # for a person
        why = ""
        if run.status == dg.DagsterRunStatus.FAILURE:
            said = why_run_failed(self._instance, run.run_id)
            # A sentence about a table begins with its name, as this line does.
            why = ": " + said.removeprefix(f"{_named(run).partition(' ')[0]}: ")
        yield f"{at:%H:%M:%S}  {_WORDS[run.status]:10} {_named(run)}{why}"
        if run.status == dg.DagsterRunStatus.SUCCESS:
            for model, version in versions_of(self._instance, run.run_id):
                yield f"{at:%H:%M:%S}  registered {model} version {version}"


def why_run_failed(instance: dg.DagsterInstance, run_id: str) -> str:
    """Return the sentence of the step that failed."""
    failures = instance.all_logs(run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
    return why_it_failed(one.dagster_event for one in failures if one.dagster_event)


def versions_of(instance: dg.DagsterInstance, run_id: str) -> Iterator[tuple[str, int]]:
    """Yield model and number of each version that a run registered."""
    for entry in instance.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION):
        made = entry.asset_materialization
        if made is not None and made.asset_key.path[-1] == _REGISTERED and "version" in made.metadata:
            yield made.asset_key.path[0], int(str(made.metadata["version"].value))


def made_by(run: dg.DagsterRun) -> set[str]:
    """Return the names of the tables and models that a run makes."""
    return {declared_as(key.to_user_string()) for key in run.asset_selection or ()}


def _named(run: dg.DagsterRun) -> str:
    """Return what a run makes, or the checks that it runs, and for which partitions."""
    keys = sorted(made_by(run))
    checks = run.asset_check_selection or ()
    keys = keys or sorted(f"{key.name} of {key.asset_key.to_user_string()}" for key in checks)
    return " ".join(filter(None, (name_some(keys) if keys else run.job_name, partition_of(run))))
