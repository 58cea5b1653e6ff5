"""The embedded lake on the way to a real lakeFS: history, digests, old ids, and a move that was stopped."""

import subprocess
import sys
from pathlib import Path

import pytest

from ml_assets.components import TrainingPipeline
from ml_assets.data.tables.environments import changes_of, create_environment
from ml_assets.extras.reproduction.reproduce import reproduce
from ml_assets.model.steps.record import version_to_show
from ml_assets_tests.cli.terminal import Terminal
from ml_assets_tests.components.installation import (
    Installation,
    failure_of,
    readings_components,
)
from ml_assets_tests.components.readings_pipeline import FEATURES, MODEL, READINGS, WINDOW, days
from ml_assets_tests.resources.lake.lake_contract import contents, publish
from ml_assets_tests.servers.lake.repositories import STORAGE, Repository
from ml_assets_tests.servers.running_servers import RunningServers
from resources.lake import VersionedStore
from resources.lake.lakefs_setup import create_repository
from resources.lake.local import LocalStore
from resources.lake.migration import Migration, MigrationRefused

_EVERY = 1000


def land(lake: VersionedStore, name: str, objects: dict[str, bytes]) -> None:
    """Publish on a branch, and merge it into main."""
    publish(lake, name, objects)
    lake.merge(name, "main", name, {"audit": "passed"})
    lake.delete_branch(name)


@pytest.fixture
def embedded(tmp_path: Path) -> LocalStore:
    """A lake with replaced, removed and garbage-collected contents, a kept branch, an open audit branch and tags."""
    lake = LocalStore(tmp_path / "embedded")
    land(lake, "one", {"a/1": b"first", "a/2": b"two"})
    land(lake, "two", {"a/1": b"replaced", "b/ü": b"unicode" * 1000})
    lake.tag("seen", "main")
    lake.create_branch("keep-model-v1", "main")
    lake.put("keep-model-v1", "snapshots/model/x", b"snapshot")
    lake.commit("keep-model-v1", "Snapshot of model", {"job_branch": "keep-run-1"})
    lake.create_branch("less", "main")
    lake.remove("less", "a/2")
    lake.commit("less", "remove", {"audit": "passed"})
    lake.tag("unnamed", "less")
    lake.merge("less", "main", "remove", {"audit": "passed"})
    lake.delete_branch("less")
    lake.create_branch("audit-orders", "main")
    lake.put("audit-orders", "a/3", b"bad")
    lake.commit("audit-orders", "rejected", {"audit": "rejected"})
    first = lake.list(next(one for one in lake.log("main") if one.message == "one").id, "a/1")[0]
    (lake.root / "objects" / first.sha256[:2] / first.sha256).unlink()
    return lake


def moved(embedded: LocalStore, repository: Repository) -> VersionedStore:
    create_repository(repository.api(), STORAGE)
    Migration(embedded, repository.store()).copy(lambda _: None)
    return repository.elsewhere("fresh").store()


def test_history_contents_and_old_ids_arrive(embedded: LocalStore, repository: Repository) -> None:
    before = Migration(embedded, repository.store()).look()
    assert (before.commits, before.migrated, before.contents, before.lost) == (7, 0, 5, 1)
    lake = moved(embedded, repository)
    assert lake.branches().keys() == embedded.branches().keys() | {"keep-migration", "keep-tag-unnamed"}
    for name, old in (embedded.branches() | embedded.tags()).items():
        assert lake.resolve(old) == lake.resolve(name)
        assert contents(lake, old) == contents(embedded, old)
        assert lake.list(old) == embedded.list(old)
    for here, there in zip(lake.log("main", _EVERY), embedded.log("main", _EVERY), strict=True):
        assert here.message == there.message
        if there.parents:
            assert here.created_at == there.created_at.replace(microsecond=0)
            assert here.metadata == {**there.metadata, "migrated_from": there.id}
        assert lake.read_commit(there.id) == here
        # The first content of a/1 was deleted by garbage collection; everything else is there.
        lost = {"a/1"} if here.message == "one" else set()
        assert {one.path for one in lake.list(there.id)} == {
            one.path for one in embedded.list(there.id)
        } - lost
    lake.create_branch("next", embedded.resolve("main"))
    lake.put("next", "a/4", b"four")
    lake.commit("next", "next", {})
    lake.merge("next", "main", "next", {"audit": "passed"})
    assert contents(lake, "main").keys() == {"a/1", "a/4", "b/ü"}
    with pytest.raises(MigrationRefused, match="of 7 commits already"):
        Migration(embedded, repository.store()).look()


def test_a_stopped_move_goes_on(embedded: LocalStore, repository: Repository) -> None:
    create_repository(repository.api(), STORAGE)

    def stop(said: str) -> None:
        if said.startswith("audit-orders:"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Migration(embedded, repository.store()).copy(stop)
    assert Migration(embedded, repository.store()).look().migrated == 5
    repository.store().put("main", "half/written", b"x")
    land(embedded, "meanwhile", {"a/9": b"nine"})
    again = Migration(embedded, repository.store())
    assert again.look().commits == 8
    again.copy(lambda _: None)
    lake = repository.elsewhere("fresh").store()
    for name, old in embedded.branches().items():
        assert lake.list(old) == lake.list(name) == embedded.list(name)


def test_a_killed_process_leaves_what_the_next_one_needs(
    servers: RunningServers, embedded: LocalStore, repository: Repository
) -> None:
    create_repository(repository.api(), STORAGE)
    for number in range(25):
        land(
            embedded, f"day-{number:02}", {f"t/{number}/{part}": b"%d" % (number * part) for part in range(9)}
        )
    record = servers.record
    where = (record.url("lakefs"), repository.name, record.lakefs_key, record.lakefs_secret, repository.cache)
    command = [sys.executable, "-m", "ml_assets_tests.servers.lake.migrating", embedded.root, *where]
    store = repository.store()
    for commits in (6, 15):
        process = subprocess.Popen(list(map(str, command)))
        while len(list(store.log("main", _EVERY))) < commits:
            assert process.poll() is None
        process.kill()
        process.wait()
        assert Migration(embedded, repository.store()).look().migrated >= commits
    subprocess.run(list(map(str, command)), check=True)
    lake = repository.elsewhere("fresh").store()
    assert [lake.list(one.id) for one in embedded.log("main", 26)] == [
        embedded.list(one.id) for one in embedded.log("main", 26)
    ]


def test_other_rows_are_refused(embedded: LocalStore, repository: Repository) -> None:
    create_repository(repository.api(), STORAGE)
    store = repository.store()
    land(store, "own", {"x": b"1"})
    with pytest.raises(MigrationRefused, match="commits that are not"):
        Migration(embedded, repository.store()).copy(lambda _: None)
    store.create_branch("mine", "main")
    with pytest.raises(MigrationRefused, match=r"branches of .*\(mine\)"):
        Migration(embedded, repository.store()).look()


def test_a_model_survives_the_move(servers: RunningServers, tmp_path: Path) -> None:
    """Its window can be read, its training repeated, an environment compared, and a day published on top."""
    home = tmp_path / "home"
    others = dict.fromkeys(("artifacts_url", "tracking_uri", "ledger_url", "dagster_url"))
    settings = servers.settings(home, **others)
    embedded = Installation(home, settings=settings.model_copy(update={"lake_url": None}))
    first, *_, day = days(WINDOW + 1)
    for table in (READINGS, FEATURES):
        result = embedded.run(table, partition=first, last=day)
        assert result.success, failure_of(result)
    result = embedded.train(day)
    assert result.success, failure_of(result)
    own = create_environment(embedded.platform, "mine", "ada")
    terminal = Terminal(home)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in servers.variables(settings).items():
            patch.setenv(name, value)
        said = terminal("lake", "migrate")
        assert said.out.endswith(": ml-assets lake migrate --copy\n"), said.err
        said = terminal("lake", "migrate", "--copy")
        assert said.status == 0, said.err
        assert "audit hook" in said.out
        said = terminal("data", "checkout", f"{MODEL}/1", str(tmp_path / "window"))
        assert said.status == 0, said.err
        assert f"{FEATURES}: {WINDOW} partitions" in said.out
        said = terminal("lake", "audit")
        assert said.status == 0, said.out
    served = Installation(home, settings=settings)
    assert served.main.digests(FEATURES) == embedded.main.digests(FEATURES)
    version = version_to_show(served.platform, MODEL, 1)
    assert version is not None
    (spec,) = (one.spec for one in readings_components() if isinstance(one, TrainingPipeline))
    again = reproduce(spec, served.platform, version, with_this_code=True, on_log=lambda _: None)
    assert again.reaches(again.expected)
    assert not changes_of(served.platform, own).changed
    result = served.run(READINGS, partition=day)
    assert result.success, failure_of(result)
