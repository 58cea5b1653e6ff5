"""Garbage of an installation: what a verdict, a branch, an environment or a training still needs stays."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ml_assets.data.snapshots.keep import keep_branch
from ml_assets.data.tables.declared import DeclaredTable, DeclaredTables
from ml_assets.data.tables.environments import drop_environment
from ml_assets.data.tables.publish.rejected import accept_partition
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.spec import Retain
from ml_assets.model.steps.waste import UNUSED, Waste, delete_waste, find_waste
from ml_assets_tests.tables.environment_place import Place
from ml_assets_tests.tables.orders_table import ORDERS, day, days, keys, reject, spec
from ml_assets_tests.training.small_jobs import small_snapshot
from resources.files import open_lock
from resources.job.events import training_folder_name
from resources.job.job import TrainingJob
from resources.ledger import NewEvaluation, Person, TrainedOn
from resources.platform import Platform
from resources.settings import Settings

FIRST, SECOND, THIRD = keys(3)
LATER = datetime.now(UTC) + timedelta(days=100)
"""Now, for a collection after the days of the history."""
WINDOW = "c" * 64
"""Digest of the partitions that a training read."""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(Platform(Settings(home=tmp_path)))


def _find(place: Place, *, retain: Retain | None = None, now: datetime = LATER) -> Waste:
    for file in (place.main.settings.home / "lake").rglob("objects/*/*"):
        os.utime(file, (0, 0))
    tables = DeclaredTables([DeclaredTable.of(spec(retain=retain))])
    return find_waste(Platform(place.main.settings), tables, {}, now)


def _delete(place: Place, waste: Waste) -> None:
    assert delete_waste(place.main, waste, "ada").objects == waste.lake.objects


def test_replaced_rows_go_after_the_days_of_the_history(place: Place) -> None:
    place.orders.publish({FIRST: day(FIRST, factor=2.0)}, run="run00002")
    assert _find(place, now=datetime.now(UTC)).lake.objects == 0
    waste = _find(place)
    assert waste.lake.objects == 2  # rows and manifest
    assert waste.lake.size > 0
    assert _find(place).lake == waste.lake
    _delete(place, waste)
    assert _find(place).lake.objects == 0
    assert place.orders.ask_guard([FIRST, SECOND]).ok


def test_evidence_that_may_be_accepted_stays(place: Place) -> None:
    reject(place.orders, THIRD)
    replaced = place.orders.ledger.newest_verdicts(ORDERS)[THIRD].branch
    place.orders.publish({THIRD: day(THIRD)}, run="run00003")
    reject(place.orders, SECOND)
    assert _find(place, now=datetime.now(UTC)).audits == []
    waste = _find(place)
    assert waste.audits == [replaced]
    _delete(place, waste)
    accept_partition(
        place.orders.store, place.orders.ledger, ORDERS, SECOND, Person.unchecked("ada"), "it was right"
    )
    assert place.orders.ask_guard([FIRST, SECOND, THIRD]).ok
    assert len(_find(place).audits) == 1


def test_a_branch_that_a_killed_run_left_goes(place: Place) -> None:
    store = place.main.whole_lake
    store.create_branch("audit-left", "main")
    store.put("audit-left", "datasets/orders/date=2013-01-09/part-0.parquet", b"half")
    assert _find(place).audits == []  # main did not move since, so it may be young
    place.orders.publish({THIRD: day(THIRD)}, run="run00002")
    assert _find(place, now=datetime.now(UTC)).audits == []
    waste = _find(place)
    assert waste.audits == ["audit-left"]
    assert waste.lake.objects == 1


def test_an_environment_keeps_its_partitions_its_base_and_its_evidence(place: Place) -> None:
    reject(place.orders, THIRD)
    inside = place.enter()
    place.orders.publish({FIRST: day(FIRST, factor=2.0), THIRD: day(THIRD)}, run="run00002")
    inside.publish({SECOND: day(SECOND, factor=3.0)}, run="run00003")
    reject(inside, FIRST)
    waste = _find(place)
    assert (waste.audits, waste.lake.objects) == ([], 0)
    inside.publish({FIRST: day(FIRST)}, run="run00004")
    (only,) = _find(place).audits
    assert only.startswith("env-try_it--audit-")
    accept_partition(
        inside.store, inside.ledger, ORDERS, THIRD, Person.unchecked("ada"), "known to the environment"
    )
    drop_environment(place.main, "try_it")
    waste = _find(place)
    assert len(waste.audits) == 1
    assert waste.lake.objects > 0
    _delete(place, waste)
    assert place.orders.ask_guard([FIRST, SECOND, THIRD]).ok


def test_partitions_that_are_not_retained_leave_main_first(place: Place) -> None:
    place.orders.publish(days(5), run="run00002")
    waste = _find(place, retain=Retain(partitions=2), now=datetime.now(UTC))
    (one,) = waste.retired
    assert (one.keys, waste.lake.objects) == (tuple(keys(3)), 0)
    _delete(place, waste)
    assert TableReader.at(place.main.lake).keys(ORDERS) == keys(2, 3)
    assert _find(place, retain=Retain(partitions=2)).lake.objects == 6


def test_inputs_of_trainings_that_ended_without_a_version(place: Place) -> None:
    store, jobs = place.main.whole_lake, place.main.settings.artifacts_folder / "training" / "m"
    for fingerprint in ("a" * 16, "b" * 16):
        (jobs / fingerprint).mkdir(parents=True)
        store.create_branch(keep_branch(fingerprint, WINDOW), "main")
    store.keep("keep-m-v1-0123456789ab", "main")
    (jobs / ("a" * 16) / "result.json").write_text("{}")
    assert _find(place, now=datetime.now(UTC)).inputs == []
    waste = _find(place)
    assert waste.inputs == [keep_branch("a" * 16, WINDOW)]
    _delete(place, waste)
    assert list(store.branches("keep-")) == ["keep-m-v1-0123456789ab", keep_branch("b" * 16, WINDOW)]


def test_an_input_that_the_newest_evaluation_of_a_version_read_stays(place: Place) -> None:
    """The run ended after its evaluation, before it could keep its input for the version."""
    store, log = place.main.whole_lake, place.main.ledger.models
    source = store.resolve("main")
    log.record_evaluation(
        NewEvaluation(
            model="m",
            partition=SECOND,
            bundle_digest="b" * 64,
            evaluation_digest="e" * 64,
            champion_digest=None,
            status="blessed",
            summary="",
            rules=(),
            by=Person.unchecked("ada"),
            report="",
            run_id="run",
            trained_on=TrainedOn(commit=source, table=ORDERS, first=FIRST, last=SECOND, partitions=2),
        )
    )
    branch = keep_branch("a" * 64, WINDOW)
    store.create_branch(branch, source)
    store.put(branch, "snapshots/m/snapshot.json", b"{}")
    store.commit(branch, "Snapshot", {})
    job = place.main.settings.artifacts_folder / "training" / "m" / ("a" * 16)
    job.mkdir(parents=True)
    (job / "result.json").write_text("{}")
    assert _find(place).inputs == [branch]
    log.name_version(
        "m",
        "b" * 64,
        schema_digest="0",
        recipe_digest="0",
        choose=lambda _: "1.0.0",
        allow=lambda: None,
    )
    assert _find(place).inputs == []


def test_checkpoints_of_finished_trainings_and_unused_snapshots(place: Place) -> None:
    home = place.main.settings.home
    old, young = (home / "cache" / "snapshots" / name for name in ("old", "young"))
    jobs = home / "artifacts" / "training" / "m"
    done, going, locked = (jobs / name for name in ("done", "going", "locked"))
    for folder in (old, young, *(one / "checkpoints" / "step" for one in (done, going, locked))):
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(b"12345")
    for one in (done, locked):
        (one / "result.json").write_text("{}")
    past = (datetime.now(UTC) - UNUSED - timedelta(hours=1)).timestamp()
    os.utime(old, (past, past))
    descriptor = open_lock(locked / "lock")
    try:
        waste = _find(place, now=datetime.now(UTC))
    finally:
        os.close(descriptor)
    assert waste.snapshots == {old: 5}
    assert waste.checkpoints == {"training/m/done": {"checkpoints/step/file": 5}}
    _delete(place, waste)
    assert not old.exists()
    assert young.exists()
    assert [path.name for path in done.rglob("*") if path.is_file()] == ["result.json"]


def test_a_snapshot_that_a_run_makes_again_is_in_use(place: Place) -> None:
    """The folder of weeks ago stays as it is. Until its training begins, nothing else says that a run needs it."""
    folder = place.main.settings.cache_folder / "snapshots"
    snapshot = small_snapshot(folder)
    past = (datetime.now(UTC) - UNUSED - timedelta(hours=1)).timestamp()
    os.utime(snapshot.folder, (past, past))
    assert list(_find(place, now=datetime.now(UTC)).snapshots) == [snapshot.folder]
    assert small_snapshot(folder).folder == snapshot.folder
    assert _find(place, now=datetime.now(UTC)).snapshots == {}


def test_a_snapshot_for_pods_stays_while_a_training_may_resume(place: Place) -> None:
    for seed, digest in enumerate(("d" * 64, "e" * 64, "e" * 64)):
        job = TrainingJob(
            model="m",
            partition="2024-01-01",
            model_function="a.b",
            objective="binary",
            hyperparameters={},
            snapshot="",
            snapshot_digest=digest,
            code_version="",
            seed=seed,
        )
        folder = place.main.artifacts.folder(training_folder_name(job))
        (folder / "job.json").write_text(job.to_json())
        if seed != 1:
            (folder / "result.json").write_text("{}")
        for name in ("snapshot.json", "train/0.bin"):
            file = place.main.artifacts.folder(f"snapshots/{digest}") / name
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(b"12345")
    waste = _find(place)
    assert waste.shared == {f"snapshots/{'d' * 64}": 10}
    _delete(place, waste)
    assert not place.main.artifacts.exists(f"snapshots/{'d' * 64}")
    assert place.main.artifacts.files(f"snapshots/{'e' * 64}") == {"snapshot.json": 5, "train/0.bin": 5}


def test_packages_of_reproduce_go_a_week_after_their_last_use(place: Place) -> None:
    folder = place.main.settings.cache_folder / "environments"
    for name in ("old", "used"):
        (folder / name / "bin").mkdir(parents=True)
        (folder / name / "bin" / "python").write_bytes(b"12345")
        (folder / f"{name}.txt").write_text("lock")
        (folder / name / "ml-assets-complete").touch()
    os.utime(folder / "old", (0, 0))
    os.utime(folder / "old" / "ml-assets-complete", (0, 0))
    waste = _find(place, now=datetime.now(UTC))
    assert waste.packages == {folder / "old": 5}
    _delete(place, waste)
    assert sorted(one.name for one in folder.iterdir() if one.suffix != ".lock") == ["used", "used.txt"]
