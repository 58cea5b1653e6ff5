"""The MLflow server is killed in the middle of a training and comes back: the training does not notice, and afterwards
every point is there once."""

import time
from collections import Counter
from pathlib import Path

import pytest

from ml_assets_tests.servers.running_servers import RunningServers
from ml_assets_tests.training.small_jobs import small_job, small_snapshot
from resources.job.events import TrainingEvent, read_events
from resources.launcher.local import LocalLauncher
from resources.tracking.mlflow_client import REQUEST_SECONDS, open_client
from resources.tracking.tracker import RunFacts, TrackedRun, Tracker

pytestmark = pytest.mark.timeout(400)

KILLED_AT, BACK_AT = 30, 60
"""Steps, of 117."""


class Tracking:
    """Tracking of a training's events, as the step of a run does it; kills the server, and starts it again."""

    def __init__(self, servers: RunningServers, run: TrackedRun) -> None:
        self._servers, self._run = servers, run
        self.longest_call = 0.0
        self.is_killed = self.is_back = False

    def event(self, event: TrainingEvent) -> None:
        numbers = _numbers(event)
        began = time.perf_counter()
        self._run.log(numbers, event.step, event.time)
        self.longest_call = max(self.longest_call, time.perf_counter() - began)
        if event.step >= KILLED_AT and not self.is_killed:
            self.is_killed = True
            self._servers.kill("mlflow")
        if event.step >= BACK_AT and not self.is_back:
            self.is_back = True
            self._servers.restart("mlflow")


@pytest.fixture
def facts(request: pytest.FixtureRequest) -> RunFacts:
    """Facts of a training that only this test has."""
    own = f"{request.node.name}-{time.time_ns()}"
    return RunFacts(experiment="tracking", fingerprint=own, name="one", author="ada")


@pytest.mark.parametrize("stays_away", [False, True], ids=["comes back meanwhile", "comes back later"])
def test_a_killed_mlflow_server_has_every_point_once_in_the_end(
    tmp_path: Path, servers: RunningServers, facts: RunFacts, stays_away: bool
) -> None:
    """The server is killed in the middle of a training."""
    tracker = Tracker(servers.record.url("mlflow"), tmp_path / "artifacts")
    snapshot, folder = small_snapshot(tmp_path / "snapshots"), tmp_path / "job"
    with tracker.start(facts) as run:
        tracking = Tracking(servers, run)
        tracking.is_back = stays_away
        result = LocalLauncher().run(
            small_job(snapshot, pace=0.02), folder, tracking.event, lambda line: None
        )
    assert tracking.is_killed
    assert result.attempts == 1  # the training did not notice
    # Put aside now and then; one that waited for the server would take the client's timeout, and try again.
    assert tracking.longest_call < REQUEST_SECONDS
    if stays_away:
        assert list((tmp_path / "artifacts" / "spool").glob(f"{run.run_id}-*.jsonl"))
        servers.restart("mlflow")
    tracker.settle()
    client = open_client(tracker.uri)
    assert client.get_run(run.run_id).info.status == "FINISHED"
    told = Counter(
        (name, event.step, value, int(event.time * 1e9) // 1_000_000)
        for event in read_events(folder)
        for name, value in _numbers(event).items()
    )
    stored = Counter(
        (name, point.step, point.value, point.timestamp)
        for name in client.get_run(run.run_id).data.metrics
        for point in client.get_metric_history(run.run_id, name)
    )
    assert stored == told
    assert set(told.values()) == {1}
    assert len({step for name, step, *_ in told if name == "loss"}) == result.steps


def _numbers(event: TrainingEvent) -> dict[str, float]:
    """The figures of an event, those that every step has."""
    if event.kind != "metrics":
        return {}
    return {name: float(value) for name, value in event.values.items() if isinstance(value, int | float)}
