"""The power of the node under a run's pod is cut: its healthy trainers stay, and the resumed run attaches to them."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import dagster as dg
import pytest
from dagster._daemon.monitoring.run_monitoring import count_resume_run_attempts

from ml_assets_tests.cluster import run_location
from ml_assets_tests.cluster.cluster_environment import ClusterEnvironment, waited_for
from ml_assets_tests.cluster.dagster_on_cluster import ACCOUNTS, DagsterOnCluster, dagster_on_cluster
from ml_assets_tests.cluster.launched_job import logged_steps, settings_of
from ml_assets_tests.cluster.unhurried_model import NOW
from ml_assets_tests.components.installation import Installation, key_of
from ml_assets_tests.components.readings_pipeline import WINDOW, days
from resources.job.events import EVENTS, RESULT, read_events
from resources.job.job import TrainingResult

pytestmark = [pytest.mark.timeout(900), pytest.mark.alone, pytest.mark.nightly]

LOST_NODE = 1
TRAINERS_NODE = f"node{run_location.TRAINERS_NODE}"
LEASE_SECONDS = 5
"""Shorter than the default, so that it has run out long before Dagster notices the loss."""
(DAY,) = days(1, start=WINDOW)
STAGES = ("training_set", "checkpoint", "evaluation", "registered_model")


@pytest.fixture
def variables(reachable: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Environment of the installation, also of its runs in pods."""
    own = {"ML_ASSETS_KUBERNETES_LEASE_SECONDS": str(LEASE_SECONDS), "STEP_LOGS_BUCKET": "artifacts"}
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    return reachable | own


@pytest.fixture
def installation(variables: dict[str, str]) -> Installation:
    """The readings pipeline with an empty lake."""
    return run_location.installed(settings_of(variables))


@pytest.fixture
def dagster(
    tidy: ClusterEnvironment,
    variables: dict[str, str],
    installation: Installation,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[DagsterOnCluster]:
    """Dagster of that installation; runs begin on the node that will be lost."""
    folder = tmp_path / "dagster"
    folder.mkdir()
    dagster = dagster_on_cluster(tidy, variables, installation.defs, folder, first_node=LOST_NODE)
    monkeypatch.setenv("KUBECONFIG", str(folder / ACCOUNTS / "pruner"))  # of the sweeps
    with dagster.instance as instance:
        installation.instance = instance
        yield dagster


def test_a_run_that_lost_its_node_attaches_to_the_same_trainers(
    dagster: DagsterOnCluster,
    installation: Installation,
    tidy: ClusterEnvironment,
    hurry: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Sweeps and Dagster's run monitoring go on all the time. No step is trained twice."""
    installation.with_tables(1)
    model = run_location.model_of(installation.settings)
    run_id = dagster.launch([f"{model}/{stage}" for stage in STAGES], DAY)
    dagster.until(lambda: dagster.observations(run_id) > 0, "a step to be trained")
    assert dagster.run_pods(run_id) == {f"node{LOST_NODE}": "Running"}
    trainers = dagster.trainers()
    assert sorted(trainers.values()) == [(TRAINERS_NODE, "Running")] * 2

    tidy.cluster.kill_node(LOST_NODE)
    killed = time.monotonic()
    dagster.until(lambda: TRAINERS_NODE in dagster.run_pods(run_id), "a pod of the run elsewhere")
    resumed = time.monotonic()
    dagster.until(lambda: not dagster.lease_is_over(), "the resumed run to take the Lease")
    assert dagster.sweeps_after_expiry > 0
    assert dagster.trainers() == trainers
    (hurry / NOW).touch()
    dagster.until(lambda: dagster.run(run_id).is_finished, "the run to end")
    with capsys.disabled():
        print(f"\nnode killed, run resumed after {resumed - killed:.1f} s; {dagster.sweeps_after_expiry} sweeps of "
              "its expired Lease removed nothing")  # fmt: skip

    assert dagster.run(run_id).is_success, dagster.about()
    assert count_resume_run_attempts(dagster.instance, run_id) == 1
    said = dagster.messages(run_id)
    (started,) = (line for line in said if line.startswith("started train-"))
    name = started.partition(":")[0].removeprefix("started ")
    assert f"attached to {name}, " in said
    facts = {stage: materialized_by(dagster.instance, run_id, f"{model}/{stage}") for stage in STAGES}
    assert_no_step_twice(installation, model, Path(str(facts["checkpoint"]["folder"].value)).name)

    tidy.cluster.start_node(LOST_NODE)
    lost = f"node{LOST_NODE}"
    waited_for(lambda: lost not in dagster.run_pods(run_id), "the lost pod to go", 300, dagster.about)
    assert dagster.trainers() == {}
    assert tidy.objects("leases") == []


def materialized_by(instance: dg.DagsterInstance, run_id: str, name: str) -> Mapping[str, dg.MetadataValue]:
    """Return the metadata of the newest materialization of asset `a/b`, which this run made for the day."""
    event = instance.get_latest_materialization_event(key_of(name))
    assert event is not None
    assert event.asset_materialization is not None
    assert (event.run_id, event.asset_materialization.partition) == (run_id, DAY)
    return event.asset_materialization.metadata


def assert_no_step_twice(installation: Installation, model: str, training: str) -> None:
    """The first attempt trained every step, and reported each once."""
    folder = installation.platform.artifacts.pull(f"training/{model}/{training}", [EVENTS, RESULT])
    result = TrainingResult.read(folder / RESULT)
    assert (result.attempts, result.resumed_from_steps) == (1, ())
    steps = logged_steps(read_events(folder))
    assert steps == sorted(set(steps))
    assert len(steps) == result.steps
