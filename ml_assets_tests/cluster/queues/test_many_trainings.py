"""Trainings followed at the same time: no end is missed, and their launchers leave the API server alone meanwhile."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ml_assets_tests.cluster.cluster_environment import ClusterEnvironment
from ml_assets_tests.cluster.launched_job import rightful_kubeconfig
from ml_assets_tests.cluster.queues.many_trainings import ENDS, ManyTrainings, count_apart
from resources.launcher.kubernetes.attempt_objects import MANAGED

pytestmark = pytest.mark.timeout(900)
TRAININGS = 3 * len(ENDS)
SETTLE_SECONDS, WINDOW_SECONDS = 40.0, 30.0
MOST_REQUESTS = 0.15
"""Requests of a training in a second. The bar of 200 trainings, in `many_trainings.py` of the benchmarks, is 0.1."""


@pytest.fixture
def simulated_nodes(cluster: ClusterEnvironment) -> Iterator[None]:
    """Two simulated nodes while the test runs."""
    cluster.cluster.add_simulated_nodes(2)
    yield
    cluster.cluster.remove_simulated_nodes()


@pytest.mark.usefixtures("simulated_nodes")
def test_each_end_of_many_trainings_is_noticed_with_few_requests(
    tidy: ClusterEnvironment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    account = rightful_kubeconfig(tidy, "run", tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(account))
    count = count_apart(tidy, "run")
    trainings = ManyTrainings(tidy, account, tmp_path, TRAININGS)
    trainings.wait_until_all_run()
    time.sleep(SETTLE_SECONDS)  # logs of simulated pods cannot be read: the launchers try ever less often
    before = count()
    time.sleep(WINDOW_SECONDS)
    requests = (count() - before) / WINDOW_SECONDS / TRAININGS
    trainings.play_ends()
    trainings.finish_second_attempts()
    noticed = [one.noticed_after() for one in trainings.all]
    with capsys.disabled():
        print(f"\n{requests:.3f} requests a training and second; ends noticed after {noticed} s")
    assert None not in noticed, [(one.end, one.said) for one in trainings.all if one.noticed_after() is None]
    assert all(one.is_as_played() for one in trainings.all)
    assert 0 < requests <= MOST_REQUESTS
    left = tidy.objects("jobs,pods,services,leases", f"--selector={MANAGED}")
    assert [one["metadata"]["name"] for one in left] == []
