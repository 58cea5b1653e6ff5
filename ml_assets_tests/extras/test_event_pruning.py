"""Pruning of Dagster's event log: its answers over GraphQL stay the same, and its file becomes smaller."""

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.storage.event_log import SqlEventLogStorage
from dagster._daemon.types import DaemonHeartbeat

from ml_assets.extras.event_pruning.prune import HistoryInUse, find_prunable, prune_events
from ml_assets_tests.extras.pruned_assets import KEYS, defs
from ml_assets_tests.extras.pruned_histories import (
    GRAPH,
    answers,
    opened,
    run,
    short_history,
    without_stored_statuses,
)
from resources.settings import Settings


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with opened(Settings(home=tmp_path)) as instance:
        yield instance


def size(folder: Path) -> int:
    return sum(one.stat().st_size for one in folder.rglob("event_log.db*") if not one.name.endswith("-shm"))


def test_answers_about_assets_stay_and_the_file_shrinks(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    short_history(instance)
    before, bytes_before, now = answers(instance), size(tmp_path), datetime.now(UTC)
    assert '"STALE"' in before
    assert '"FAILED"' in before
    found = find_prunable(instance, GRAPH, now)
    assert size(tmp_path) == bytes_before == found.before
    done = prune_events(instance, GRAPH, now)
    assert done.rows == found.rows
    assert done.rows["events"] > 50
    assert done.after == size(tmp_path) < bytes_before
    assert answers(without_stored_statuses(instance)) == before
    assert find_prunable(instance, GRAPH, now).rows["events"] == 0
    run(instance, "features", KEYS[0])
    assert '"STALE"' not in answers(instance)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(3))
def test_random_histories_keep_their_answers(instance: dg.DagsterInstance, seed: int) -> None:
    """Rebuilds, corrections that not every table follows, failures and bad checks, pruned at a random time."""
    chance = random.Random(seed)
    times = [datetime.now(UTC)]
    for _ in range(40):
        asset = chance.choice(("raw", "raw", "features", "features", "weekly", "whole", "report"))
        partition = {"weekly": "2023-12-31", "whole": None, "report": None}.get(
            asset, chance.choice(KEYS[:4])
        )
        tags = {"content": chance.choice("abc")}
        tags |= {name: "yes" for name in ("fails", "bad") if chance.random() < 0.15}
        run(instance, asset, partition, **tags)
        times.append(datetime.now(UTC))
    for since in sorted(chance.choices(times, k=2)):
        before = answers(instance)
        prune_events(instance, GRAPH, since)
        assert answers(without_stored_statuses(instance)) == before


def test_an_event_never_gets_the_id_of_a_deleted_one(instance: dg.DagsterInstance) -> None:
    """SQLite gives the next row the id after the highest, and sensors skip ids up to their cursor."""
    storage = instance.event_log_storage
    assert isinstance(storage, SqlEventLogStorage)
    run(instance, "raw", KEYS[0])
    highest = storage.get_maximum_record_id()
    prune_events(instance, GRAPH, datetime.now(UTC))
    assert storage.get_maximum_record_id() == highest


def test_events_of_a_waiting_run_stay(instance: dg.DagsterInstance) -> None:
    job = defs.resolve_implicit_global_asset_job_def()
    waiting = instance.create_run_for_job(job, status=dg.DagsterRunStatus.NOT_STARTED)
    instance.report_engine_event("waits", waiting)
    before = instance.all_logs(waiting.run_id)
    run(instance, "raw", KEYS[0])
    prune_events(instance, GRAPH, datetime.now(UTC))
    assert instance.all_logs(waiting.run_id) == before
    assert before[-1].dagster_event
    assert before[-1].dagster_event.message == "waits"


def test_a_living_daemon_or_a_run_refuses_the_deletion(instance: dg.DagsterInstance) -> None:
    now = datetime.now(UTC)
    job = defs.resolve_implicit_global_asset_job_def()
    instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED)
    with pytest.raises(HistoryInUse, match="1 run in progress"):
        prune_events(instance, GRAPH, now)
    instance.add_daemon_heartbeat(DaemonHeartbeat(now.timestamp(), "SENSOR", None, None))
    with pytest.raises(HistoryInUse, match=r"a daemon of Dagster .* \(SENSOR\): end it"):
        prune_events(instance, GRAPH, now)
    find_prunable(instance, GRAPH, now)
