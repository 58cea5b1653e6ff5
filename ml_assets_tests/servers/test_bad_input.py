"""Wrong credentials, absent buckets and databases, servers that are slow, overloaded or full: each an error of ours
that says what to do and no secret, and what was there before is there afterwards.

Here: every part of the platform, each against its real server. The lake's own outages are in `lake/`, those of a
checkpoint in `training/`.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from deployment.testbed import processes
from deployment.testbed.build import build
from deployment.testbed.servers import Servers
from ml_assets_tests.servers.running_servers import RunningServers
from resources.artifacts import ArtifactsError, ArtifactsRefused, ArtifactsUnavailable, artifacts_of
from resources.artifacts.s3 import RemoteArtifacts
from resources.lake import LakeError, LakeUnavailable
from resources.ledger import LedgerError, LedgerUnavailable
from resources.platform import Platform
from resources.settings import Settings
from resources.tracking.mlflow_client import TrackerError, TrackerUnavailable

WRONG = "not-the-right-one"
OURS = (ArtifactsError, LakeError, LedgerError, TrackerError)


@pytest.fixture
def settings(servers: RunningServers, tmp_path: Path) -> Settings:
    """An installation with one branch in its lake and one folder among its artifacts."""
    settings = servers.settings(tmp_path / "home")
    platform = Platform(settings)
    for line in platform.make_lake_ready():
        assert line
    platform.lake.create_branch("before", "main")
    platform.lake.put("before", "file", b"before")
    platform.lake.commit("before", "before", {})
    (platform.artifacts.folder("before") / "file").write_text("before")
    platform.artifacts.push("before")
    platform.ledger.newest_verdicts("datasets/none", ["none"])
    return settings


def _state(settings: Settings) -> tuple[Any, ...]:
    """Return the content of the servers, read anew."""
    fresh = Settings(**settings.model_dump() | {"home": settings.home.with_name("fresh")})
    shutil.rmtree(fresh.home, ignore_errors=True)
    platform = Platform(fresh)
    files = platform.artifacts.pull("before")
    return (
        platform.lake.branches(),
        [stat.sha256 for stat in platform.lake.list("before")],
        (files / "file").read_text(),
        platform.ledger.newest_verdicts("datasets/none", ["none"]),
    )


def _changed(settings: Settings, **changes: Any) -> Settings:
    return Settings(**settings.model_dump() | changes)


def _use_lake(platform: Platform) -> None:
    platform.lake.branches()


def _use_artifacts(platform: Platform) -> None:
    (platform.artifacts.folder("new") / "file").write_text("new")
    platform.artifacts.push("new")


def _use_ledger(platform: Platform) -> None:
    platform.ledger.newest_verdicts("datasets/none", ["none"])


@pytest.mark.parametrize(
    ("use", "change", "names"),
    [
        pytest.param(
            _use_lake, {"lake_secret_access_key": WRONG}, "ML_ASSETS_LAKE_SECRET_ACCESS_KEY", id="lake key"
        ),
        pytest.param(_use_lake, {"environment": "absent"}, "ml-assets lake init", id="no such repository"),
        pytest.param(
            _use_artifacts, {"artifacts_url": "s3://absent/x"}, "ML_ASSETS_ARTIFACTS_URL", id="no such bucket"
        ),
        pytest.param(_use_ledger, {"ledger_url": WRONG}, "ML_ASSETS_LEDGER_URL", id="database password"),
        pytest.param(_use_ledger, {"ledger_url": "absent"}, "ML_ASSETS_LEDGER_URL", id="no such database"),
    ],
)
def test_a_wrong_setting_is_named_and_changes_nothing(
    servers: RunningServers,
    settings: Settings,
    use: Callable[[Platform], None],
    change: dict[str, str],
    names: str,
) -> None:
    before = _state(settings)
    right = servers.record.database_url("ledger")
    urls = {
        WRONG: right.replace(servers.record.database_password, WRONG),
        "absent": right.replace("/ledger", "/absent"),
    }
    if "ledger_url" in change:
        change = {"ledger_url": urls[change["ledger_url"]]}
    with pytest.raises(OURS, match=names) as raised:
        use(Platform(_changed(settings, **change)))
    _assert_tells_no_secret(servers, raised.value)
    assert _state(settings) == before


def test_wrong_s3_credentials_name_their_variables(
    servers: RunningServers, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _state(settings)
    with monkeypatch.context() as wrong:
        wrong.setenv("AWS_SECRET_ACCESS_KEY", WRONG)
        with pytest.raises(ArtifactsRefused, match="AWS_SECRET_ACCESS_KEY") as raised:
            _use_artifacts(Platform(settings))
    _assert_tells_no_secret(servers, raised.value)
    assert _state(settings) == before


@pytest.mark.parametrize("part", ["dagster_url", "lake_secret_access_key", "ledger_url"])
def test_a_command_with_wrong_credentials_ends_with_a_sentence(
    servers: RunningServers, settings: Settings, part: str
) -> None:
    url = servers.record.database_url("dagster").replace(servers.record.database_password, WRONG)
    wrong = _changed(settings, **{part: WRONG if part.startswith("lake") else url})
    program = Path(sys.executable).with_name("ml-assets")
    done = subprocess.run(
        [program, "launch", "datasets/sales", "2024-01-01"],
        env=os.environ | servers.variables(wrong),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert "Traceback" not in said, said
    assert f"ML_ASSETS_{part.upper()}" in said, said
    assert not [name for name, secret in servers.secrets.items() if secret in said]


def test_a_frozen_s3_is_given_up_in_time_and_waited_for_when_it_comes_back(
    servers: RunningServers, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resources.artifacts.s3.READ_SECONDS", 2)
    artifacts = _impatient(settings)
    servers.freeze("s3")
    with pytest.raises(ArtifactsUnavailable, match="did not answer"):
        artifacts.pull("before")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(Platform(settings).artifacts.pull, "before")
        servers.thaw("s3")
        assert (waiting.result(60) / "file").read_text() == "before"


def test_a_frozen_tracker_is_given_up_in_time(
    servers: RunningServers, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = Platform(settings).tracker
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    servers.freeze("mlflow")
    with pytest.raises(TrackerUnavailable):
        tracker.find("frozen", "0" * 64)
    servers.kill("mlflow")


def test_a_frozen_database_is_given_up_in_time(servers: RunningServers, settings: Settings) -> None:
    before = _state(settings)
    ledger = Platform(settings, patience_seconds=1).ledger
    servers.freeze("postgresql")
    with pytest.raises(LedgerUnavailable, match="ML_ASSETS_LEDGER_URL"):
        ledger.newest_verdicts("datasets/none", ["none"])
    servers.thaw("postgresql")
    assert _state(settings) == before


def test_an_overloaded_s3_that_answers_503_gets_everything_in_the_end(
    servers: RunningServers, tmp_path: Path
) -> None:
    port = processes.free_port()
    (tmp_path / "objects" / "small").mkdir(parents=True)
    listen = ["--port", f"127.0.0.1:{port}", "--health", "/healthz", "--keep-alive", "--max-requests", "2"]
    server = processes.start(
        "busy s3",
        [build("versitygw") / "versitygw", *listen, "posix", tmp_path / "objects"],
        log=tmp_path / "s3.log",
        env={"ROOT_ACCESS_KEY": servers.record.s3_key, "ROOT_SECRET_KEY": servers.record.s3_secret},
    )
    try:
        address = f"http://127.0.0.1:{port}"
        processes.wait_ready(server, lambda: processes.why_http_not(f"{address}/healthz"), 30)
        artifacts = artifacts_of("s3://small/x", tmp_path / "home", address)
        folder = artifacts.folder("many")
        for number in range(60):
            (folder / f"{number}").write_bytes(os.urandom(200_000))
        for _ in range(50):  # which requests meet is chance
            artifacts.push("many")
            if " 503 " in (tmp_path / "s3.log").read_text():
                break
            artifacts.remove("many", [f"{number}" for number in range(30)])
            for number in range(60):
                (folder / f"{number}").write_bytes(os.urandom(200_000))
        assert " 503 " in (tmp_path / "s3.log").read_text()
        elsewhere = artifacts_of("s3://small/x", tmp_path / "elsewhere", address).pull("many")
        assert all((elsewhere / f"{n}").read_bytes() == (folder / f"{n}").read_bytes() for n in range(60))
    finally:
        processes.kill(server)


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[tuple[RunningServers, Path]]:
    """S3, PostgreSQL and lakeFS of a test's own, S3 on a disk of 24 MB."""
    group = Servers(tmp_path / "own", ("s3", "postgresql", "lakefs"))
    disk = tmp_path / "own" / "s3"
    disk.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", disk], check=True)
    try:
        group.up()
        running = RunningServers(group)
        for name, value in running.storage_env.items():
            monkeypatch.setenv(name, value)
        yield running, disk
    finally:
        for name in ("lakefs", "s3"):
            if name in group.record.processes:
                group.kill(name)
        subprocess.run(["umount", disk], check=True)
        group.down()


def test_a_full_disk_under_s3_refuses_what_does_not_fit_and_keeps_what_did(
    full: tuple[RunningServers, Path], tmp_path: Path
) -> None:
    servers, disk = full
    settings = servers.settings(tmp_path / "home", tracking_uri=None)
    platform = Platform(settings)
    for line in platform.make_lake_ready():
        assert line
    platform.lake.create_branch("before", "main")
    platform.lake.put("before", "file", b"1" * 1_000_000)
    head = platform.lake.commit("before", "before", {})
    artifacts = _impatient(settings)
    (artifacts.folder("before") / "file").write_text("before")
    artifacts.push("before")

    too_big = os.urandom(30_000_000)
    (artifacts.folder("big") / "file").write_bytes(too_big)
    with pytest.raises(ArtifactsUnavailable, match="space"):
        artifacts.push("big", last="file")
    assert not artifacts.exists("big", "file")
    from resources.lake.lakefs import LakeFSStore

    lake = LakeFSStore(platform.lakefs, platform.lake_cache)
    with pytest.raises(LakeUnavailable) as raised:
        lake.put("before", "big", too_big)
    _assert_tells_no_secret(servers, raised.value)
    assert platform.lake.resolve("before") == head
    assert [stat.path for stat in platform.lake.list("before")] == ["file"]
    assert (artifacts.pull("before") / "file").read_text() == "before"

    subprocess.run(["mount", "-o", "remount,size=200m", disk], check=True)
    artifacts.push("big", last="file")
    lake.put("before", "big", too_big)
    lake.commit("before", "big", {})
    assert {stat.path for stat in platform.lake.list("before")} == {"file", "big"}


def _impatient(settings: Settings) -> RemoteArtifacts:
    assert settings.artifacts_url
    assert settings.s3_endpoint_url
    return RemoteArtifacts(
        settings.artifacts_url,
        settings.home / "impatient",
        settings.s3_endpoint_url.reveal(),
        patience_seconds=2,
    )


def _assert_tells_no_secret(servers: RunningServers, error: BaseException) -> None:
    told = f"{error!r} {error} {error.__cause__!r} {error.__cause__}"
    assert [name for name, secret in (servers.secrets | {"wrong": WRONG}).items() if secret in told] == []
