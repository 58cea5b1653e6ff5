"""Bad input of a cluster: each kind is named with its remedy within a minute, on a page or by the doctor, and the
rest of the team goes on.

Here: images, Secrets, disks, clocks, servers that are away. A deleted queue is in `queues`, code that does not import
in `platform`: they need Kueue and the team's image.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from deployment.testbed.servers import Servers
from ml_assets.components.sensors.ended_runs import reason_of
from ml_assets_tests.cluster import run_location
from ml_assets_tests.cluster.cluster_environment import REPOSITORY, ClusterEnvironment, waited_for
from ml_assets_tests.cluster.dagster_on_cluster import ACCOUNTS, DagsterOnCluster, dagster_on_cluster
from ml_assets_tests.cluster.launched_job import LaunchedJob, settings_of
from ml_assets_tests.components.installation import Installation
from ml_assets_tests.components.readings_pipeline import READINGS, WINDOW, days
from ml_assets_tests.resources.launcher.sweep import sweep
from resources.job.errors import ImageUnavailable, OutOfDisk, PodNotStarted, TrainingFailed

pytestmark = pytest.mark.timeout(900)

MINUTE = 60.0
BAD_DAY, GOOD_DAY, LATER_DAY = days(3)
STAGES = ("training_set", "checkpoint", "evaluation", "registered_model")
SECRET = "ml-assets-credentials"
HALF = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "half"},
    "stringData": {"AWS_ACCESS_KEY_ID": "somebody"},
}
AHEAD = """
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *told) {
  int code = syscall(SYS_clock_gettime, id, told);
  if (code == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) told->tv_sec += 3600;
  return code;
}
int gettimeofday(struct timeval *told, void *zone) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  told->tv_sec = now.tv_sec;
  told->tv_usec = now.tv_nsec / 1000;
  return 0;
}
time_t time(time_t *told) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (told) *told = now.tv_sec;
  return now.tv_sec;
}
"""
"""A library that, loaded first, sets the clock of a process an hour ahead. Its measured spans stay right."""


@pytest.mark.parametrize(
    ("plan", "image", "profile", "error", "words"),
    [
        (
            "done",
            "localhost/nowhere:1",
            {},
            ImageUnavailable,
            r"localhost/nowhere:1.*resources\.pull_secrets",
        ),
        (
            "done",
            "",
            {"env_from_secrets": [], "volumes": []},
            PodNotStarted,
            r"couldn't find key AWS_SECRET_ACCESS_KEY in Secret .*half.*add the key",
        ),
        ("greedy", "", {}, OutOfDisk, r"evicted: .*Raise resources\.scratch, 100Mi"),
    ],
    ids=["image", "key", "disk"],
)
def test_bad_input_of_a_training_is_named_within_a_minute(
    launching: Callable[..., LaunchedJob],
    plan: str,
    image: str,
    profile: dict[str, Any],
    error: type[TrainingFailed],
    words: str,
) -> None:
    """With the times of an installation that sets none, beside another training of the same team."""
    bad, good = launching(workers=1), launching(workers=1)
    bad.cluster.apply(HALF)
    if image:
        bad = bad.with_kubernetes(image=image)
    elif error is PodNotStarted:
        bad = bad.with_kubernetes(s3_secret="half")
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(good.run, good.profile("steps", steps=400))
        began = time.monotonic()
        with pytest.raises(error, match=words):
            bad.run(bad.profile(plan, **profile))
        assert time.monotonic() - began < MINUTE
        assert beside.result().attempts == 1
    assert bad.left() == good.left() == []


@pytest.fixture
def variables(reachable: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Environment of the installation, also of its runs in pods."""
    monkeypatch.setenv("STEP_LOGS_BUCKET", "artifacts")
    return reachable | {"STEP_LOGS_BUCKET": "artifacts"}


@pytest.fixture
def installation(variables: dict[str, str]) -> Installation:
    """The readings pipeline with an empty lake."""
    return run_location.installed(settings_of(variables))


@pytest.fixture
def begun(
    tidy: ClusterEnvironment, variables: dict[str, str], installation: Installation, tmp_path: Path
) -> Iterator[Callable[..., DagsterOnCluster]]:
    """Begins Dagster of that installation; the pods of its runs may have more limits."""
    folder = tmp_path / "dagster"
    folder.mkdir()
    opened: list[dg.DagsterInstance] = []

    def begin(**limits: str) -> DagsterOnCluster:
        dagster = dagster_on_cluster(tidy, variables, installation.defs, folder, first_node=1, limits=limits)
        opened.append(dagster.instance)
        return dagster

    yield begin
    for one in opened:
        one.dispose()


def said_on_page(dagster: DagsterOnCluster, run_id: str, words: str) -> str:
    """Return the first message of a run's page with these words, within a minute."""

    def found() -> list[str]:
        return [line for line in dagster.messages(run_id) if words in line]

    waited_for(lambda: bool(dagster.monitor() or found()), f"{words!r} on the page", MINUTE, dagster.about)
    return found()[0]


def succeeds(dagster: DagsterOnCluster, run_id: str) -> None:
    """Wait until the run has ended, well."""
    waited_for(lambda: dagster.run(run_id).is_finished, "the run to end", 300, dagster.about)
    assert dagster.run(run_id).is_success, dagster.about()


def test_a_run_whose_image_is_missing_says_so_on_its_page(begun: Callable[..., DagsterOnCluster]) -> None:
    dagster = begun()
    bad = dagster.launch([READINGS], BAD_DAY, image="localhost/nowhere:1")
    good = dagster.launch([READINGS], GOOD_DAY)
    said = said_on_page(dagster, bad, "ImageUnavailable")
    assert "the pod of this run on node" in said
    assert "image localhost/nowhere:1" in said
    assert "images.pullSecrets" in said
    succeeds(dagster, good)


def test_a_run_whose_secret_is_missing_says_so_and_starts_with_it(
    begun: Callable[..., DagsterOnCluster], tidy: ClusterEnvironment
) -> None:
    dagster = begun()
    secret = json.loads(tidy.kubectl("get", "secret", SECRET, "--output=json"))
    tidy.kubectl("delete", "secret", SECRET)
    run_id = dagster.launch([READINGS], BAD_DAY)
    said = said_on_page(dagster, run_id, "PodNotStarted")
    assert f'secret "{SECRET}" not found' in said
    assert "secrets.platform of the chart" in said
    secret["metadata"] = {"name": SECRET}
    tidy.apply(secret)
    succeeds(dagster, run_id)


def test_a_run_whose_secret_lacks_the_ledger_fails_with_that_key(
    begun: Callable[..., DagsterOnCluster], tidy: ClusterEnvironment
) -> None:
    """Else it would write its verdicts into a file of its pod."""
    dagster = begun()
    remove = json.dumps([{"op": "remove", "path": "/data/ML_ASSETS_LEDGER_URL"}])
    tidy.kubectl("patch", "secret", SECRET, "--type=json", f"--patch={remove}")
    run_id = dagster.launch([READINGS], BAD_DAY)
    waited_for(
        lambda: bool(dagster.monitor() or dagster.run(run_id).is_finished), "its end", MINUTE, dagster.about
    )
    assert dagster.run(run_id).status == dg.DagsterRunStatus.FAILURE
    errors = [str(one.dagster_event) for one in dagster.instance.all_logs(run_id)]
    assert any("in a pod, ML_ASSETS_LEDGER_URL must be set" in one for one in errors), dagster.about()


def test_a_run_that_fills_its_disk_fails_with_its_limit(
    begun: Callable[..., DagsterOnCluster],
    installation: Installation,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is not started again, as it would be evicted again. A kubelet looks at disks once a minute."""
    installation.with_tables(1)
    dagster = begun(**{"ephemeral-storage": "200Ki"})
    model = run_location.model_of(installation.settings)
    run_id = dagster.launch([f"{model}/{stage}" for stage in STAGES], *days(1, start=WINDOW))
    waited_for(
        lambda: bool(dagster.monitor() or dagster.run(run_id).is_finished), "its end", 300, dagster.about
    )
    assert dagster.run(run_id).status == dg.DagsterRunStatus.FAILURE
    why, _ = reason_of(dagster.instance, run_id)
    assert why.startswith("OutOfDisk: "), why
    assert "runs.resources.limits.ephemeral-storage" in why
    assert len(dagster.cluster.objects("jobs", f"--selector=dagster/run-id={run_id}")) == 1
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "dagster" / ACCOUNTS / "pruner"))
    waited_for(
        lambda: bool(sweep(dagster.pruner, dagster.instance)) and not dagster.cluster.objects("leases"),
        "its training to be removed",
        120,
        dagster.about,
    )


@pytest.fixture
def ahead(tmp_path: Path) -> Path:
    """The library `AHEAD`, in a folder that pods may mount."""
    folder = tmp_path / "ahead"
    folder.mkdir()
    folder.chmod(0o755)
    (folder / "ahead.c").write_text(AHEAD)
    library = folder / "ahead.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, folder / "ahead.c"], check=True)
    return library


def test_the_doctor_names_a_clock_that_is_an_hour_ahead(reachable: dict[str, str], ahead: Path) -> None:
    began = time.monotonic()
    done = subprocess.run(
        [Path(sys.executable).with_name("ml-assets"), "doctor"],
        cwd=REPOSITORY,
        env=os.environ | reachable | {"LD_PRELOAD": str(ahead)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert time.monotonic() - began < MINUTE
    failed = {line[6:22].strip(): line for line in done.stdout.splitlines() if line.startswith("FAIL")}
    assert "lakeFS is 60 minutes behind" in failed["clock"], done.stdout
    assert "the ledger is 60 minutes behind" in failed["clock"]
    assert "Set the clock of this machine (NTP)" in failed["clock"]
    assert "the API server is 60 minutes behind" in failed["cluster clock"]
    assert "set the wrong clock right" in failed["artifacts"]


def test_a_training_on_a_node_with_a_wrong_clock_names_the_clock(
    make_trained_job: Callable[..., LaunchedJob], ahead: Path
) -> None:
    launch = make_trained_job(pace=0, max_attempts=2)
    variables = dict(launch.variables)
    mounts = json.loads(variables["ML_ASSETS_KUBERNETES_MOUNTS"])
    mounts.append({"host_path": str(ahead.parent), "mount_path": "/opt/ahead"})
    environment = json.loads(variables["ML_ASSETS_KUBERNETES_ENV"]) | {
        "LD_PRELOAD": f"/opt/ahead/{ahead.name}"
    }
    variables |= {
        "ML_ASSETS_KUBERNETES_MOUNTS": json.dumps(mounts),
        "ML_ASSETS_KUBERNETES_ENV": json.dumps(environment),
    }
    launch = LaunchedJob(launch.cluster, settings_of(variables), variables, launch.job)
    began = time.monotonic()
    with pytest.raises(TrainingFailed, match="set the wrong clock right"):
        launch.run(launch.profile("", cpu="500m", memory="2Gi"))
    assert time.monotonic() - began < MINUTE
    assert launch.left() == []


@pytest.mark.alone
def test_a_run_while_the_lake_is_away_says_so_and_the_next_one_works(
    begun: Callable[..., DagsterOnCluster], running_servers: Servers
) -> None:
    """A minute and a half for five: longer than a client's 30 s, and than the first repetition of the step."""
    dagster = begun()
    running_servers.kill("lakefs")
    try:
        bad = dagster.launch([READINGS], BAD_DAY)
        waited_for(
            lambda: dagster.run(bad).status == dg.DagsterRunStatus.STARTED, "its begin", 300, dagster.about
        )
        events = waits_for_failure(dagster, bad)
        assert "LakeUnavailable" in events
        assert "check that it runs" in events
        time.sleep(MINUTE / 2)
    finally:
        running_servers.restart("lakefs")
    waited_for(lambda: dagster.run(bad).is_finished, "its end", 300, dagster.about)
    succeeds(dagster, dagster.launch([READINGS], LATER_DAY))


def waits_for_failure(dagster: DagsterOnCluster, run_id: str) -> str:
    """Return the error of the run's first failed try, within a minute."""
    kinds = {dg.DagsterEventType.STEP_UP_FOR_RETRY, dg.DagsterEventType.STEP_FAILURE}
    found: list[str] = []

    def has_failed() -> bool:
        found[:] = [
            str(event.dagster_event.event_specific_data)
            for event in dagster.instance.all_logs(run_id, of_type=kinds)
            if event.dagster_event is not None
        ]
        return bool(found)

    waited_for(has_failed, "a failed try", MINUTE, dagster.about)
    return found[0]


@pytest.mark.alone
def test_a_run_outlives_a_minute_without_the_database(
    begun: Callable[..., DagsterOnCluster], running_servers: Servers
) -> None:
    """The database of ledger, lake and Dagster itself. Nothing can be said on a page meanwhile; `doctor` names it."""
    dagster = begun()
    run_id = dagster.launch([READINGS], BAD_DAY)
    waited_for(
        lambda: dagster.run(run_id).status == dg.DagsterRunStatus.STARTED, "its begin", 300, dagster.about
    )
    running_servers.kill("postgresql")
    try:
        began = time.monotonic()
        done = subprocess.run(
            [Path(sys.executable).with_name("ml-assets"), "doctor"],
            cwd=REPOSITORY,
            env=os.environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert time.monotonic() - began < MINUTE
        failed = [line[6:22].strip() for line in done.stdout.splitlines() if line.startswith("FAIL")]
        assert {"ledger", "dagster storage"} <= {*failed}, done.stdout + done.stderr
        time.sleep(max(0.0, MINUTE - (time.monotonic() - began)))
    finally:
        running_servers.restart("postgresql")
    waited_for(
        lambda: bool(dagster.monitor() or dagster.run(run_id).is_finished), "its end", 300, dagster.about
    )
    assert dagster.run(run_id).is_success, dagster.about()
