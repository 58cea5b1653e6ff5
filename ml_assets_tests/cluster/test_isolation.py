"""Workers of a training reach only each other, on a cluster that enforces policies: the launcher makes them."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ml_assets_tests.cluster.cluster_environment import PYTHON, ClusterEnvironment, pod, waited_for
from ml_assets_tests.cluster.launched_job import LaunchedJob, rightful_kubeconfig, settings_of, take_right
from ml_assets_tests.deployment.chart_objects import chart_object
from resources.job.errors import ClusterRefused
from resources.launcher.kubernetes.attempt_objects import MANAGED_LABEL, MANAGER, MASTER_PORT, TRAINING
from resources.launcher.kubernetes.cluster_checks import NEEDED, NEEDED_FOR_POLICIES, cluster_checks
from resources.launcher.resource_profile import ResourceProfile

pytestmark = [pytest.mark.timeout(900), pytest.mark.alone]

PROFILE = ResourceProfile(nodes=2, cpu="500m", memory="3Gi", spread="required")
OF_THE_CHART = ("nothing-by-default", "workers")
CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 5).close()
except ConnectionRefusedError:
    pass  # by the pod itself: a policy lets no packet through
except OSError:
    sys.exit(print("closed"))
print("open")
"""


@pytest.fixture
def closed(tidy: ClusterEnvironment) -> Iterator[ClusterEnvironment]:
    """The cluster with enforced policies; its namespace is closed as the chart closes it, but for this machine."""
    tidy.cluster.add_policies()
    machine = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "servers"},
        "spec": {
            "podSelector": {},
            "policyTypes": ["Egress"],
            "egress": [{"to": [{"ipBlock": {"cidr": f"{tidy.cluster.layout.address}/32"}}]}],
        },
    }
    shipped = [chart_object("NetworkPolicy", name) for name in OF_THE_CHART]
    for one in shipped:
        one["metadata"].pop("namespace", None)
    tidy.apply(machine, *shipped)
    yield tidy
    tidy.kubectl("delete", "networkpolicies", "--all")


@pytest.mark.parametrize("back_end", ["job", "jobset", "trainjob"])
def test_workers_let_in_only_workers_of_their_own_training(
    closed: ClusterEnvironment,
    make_trained_job: Callable[..., LaunchedJob],
    restarted: Callable[[LaunchedJob, str], LaunchedJob],
    back_end: str,
) -> None:
    """The training ends well over two nodes; meanwhile a worker of another one knocks. The policy goes with its Job."""
    launch = restarted(make_trained_job(pace=0.4, epochs=5, patience=5), back_end)
    variables = launch.variables | {"ML_ASSETS_KUBERNETES_ISOLATED": "true"}
    launch = dataclasses.replace(launch, variables=variables, settings=settings_of(variables))
    process = launch.start(PROFILE)
    launch.wait_for_events(process, 3)
    workers = [one["status"]["podIP"] for one in launch.objects("pods")]
    assert len(workers) == 2
    own = launch.job.fingerprint[:12]
    for name, training in (("friend", own), ("stranger", "0" * 12)):
        labels = {MANAGED_LABEL: MANAGER, TRAINING: training}
        idle = pod(name, closed.image, "import time; time.sleep(3600)", labels=labels)
        del idle["metadata"]["labels"]["app"]
        closed.apply(idle)
        closed.wait_for_phase(name, "Running")

    def reached_by(name: str) -> list[str]:
        return [
            closed.kubectl("exec", name, "--", PYTHON, "-c", CONNECT, address, str(MASTER_PORT)).strip()
            for address in workers
        ]

    # A new pod is open until the rules know its address.
    waited_for(lambda: reached_by("stranger") == ["closed"] * 2, "the stranger to be refused", 60)
    waited_for(lambda: reached_by("friend") == ["open"] * 2, "the friend to be let in", 60)
    assert process.poll() is None, "the training goes on meanwhile"
    closed.kubectl("delete", "pod", "friend", "stranger", "--wait=false")

    assert process.stdout is not None
    lines = process.stdout.read().splitlines()
    assert process.wait() == 0, lines[-20:]
    assert lines[-1] == "result 1", lines[-20:]
    waited_for(
        lambda: launch.objects("networkpolicies") == [],
        "the policy to go with its owner",
        60,
        lambda: json.dumps(launch.objects("networkpolicies"), indent=1),
    )


def test_a_doctor_names_the_missing_right_to_policies(
    launching: Callable[..., LaunchedJob], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = launching(workers=1)
    monkeypatch.setenv("KUBECONFIG", str(rightful_kubeconfig(launch.cluster, "run", tmp_path)))
    rights = dict(cluster_checks(launch.with_kubernetes(context="run", isolated=True).settings))[
        "cluster rights"
    ]
    assert rights().startswith(f"all {len(NEEDED) + len(NEEDED_FOR_POLICIES)} permissions")
    take_right(launch.cluster, "networkpolicies")
    with pytest.raises(
        ClusterRefused, match=r"may not create networkpolicies: .*ML_ASSETS_KUBERNETES_ISOLATED"
    ):
        rights()
