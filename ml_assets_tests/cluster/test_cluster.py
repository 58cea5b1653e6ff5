"""The cluster itself: nodes that are apart, pods that reach what they should, and deaths that are real."""

import json
import time
from contextlib import suppress
from pathlib import Path

import numpy
import pytest

from deployment.testbed import processes
from deployment.testbed.cluster.commands import CommandFailed
from deployment.testbed.processes import Process
from ml_assets_tests.cluster.cluster_environment import ClusterEnvironment, pod, pod_spec, waited_for

NOTICED_SECONDS = 300.0
"""The controller waits 10 s; a busy machine may take its time."""

LISTEN = """
import os, socket
server = socket.create_server(("", 8000))
while True:
    connection, _ = server.accept()
    connection.sendall(os.environ["HOSTNAME"].encode())
    connection.close()
"""
SLEEP = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
print("sleeping", flush=True)
time.sleep(3600)
"""


def ask(host: str, times: int = 60) -> str:
    """Code that prints what is listening at `host`, trying until it is there."""
    return f"""
import socket, sys, time
for _ in range({times}):
    try:
        with socket.create_connection(({host!r}, 8000), timeout=2) as connection:
            print(connection.recv(100).decode())
            sys.exit(0)
    except OSError as error:
        print(error, file=sys.stderr)
        time.sleep(0.5)
sys.exit(1)
"""


def service(name: str, *, headless: bool) -> dict[str, object]:
    spec = {"selector": {"app": name}, "ports": [{"port": 8000}], "publishNotReadyAddresses": headless}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {**spec, "clusterIP": "None"} if headless else spec,
    }


def ready(cluster: ClusterEnvironment, node: int) -> bool:
    """Return whether the API server has a node on record as ready."""
    [item] = [item for item in cluster.cluster.objects("nodes") if item["metadata"]["name"] == f"node{node}"]
    return any(c["type"] == "Ready" and c["status"] == "True" for c in item["status"]["conditions"])


def test_the_api_server_and_both_nodes_run_the_pinned_release(cluster: ClusterEnvironment) -> None:
    pinned = "v1.34.4"
    nodes = cluster.cluster.objects("nodes")
    assert cluster.cluster.server_version() == pinned
    assert [node["status"]["nodeInfo"]["kubeletVersion"] for node in nodes] == [pinned, pinned]
    assert len({node["status"]["addresses"][0]["address"] for node in nodes}) == 2


def test_pods_of_an_indexed_job_find_each_other_by_name_across_nodes(tidy: ClusterEnvironment) -> None:
    code = f"""
import os
if os.environ["JOB_COMPLETION_INDEX"] == "0":
    import socket
    connection, _ = socket.create_server(("", 8000)).accept()
    connection.sendall(b"hello from " + os.environ["JOB_COMPLETION_INDEX"].encode())
    connection.close()
    print("sent")
else:
{"".join(f"    {line}" + chr(10) for line in ask("pair-0.pair").splitlines())}
"""
    template = pod_spec(tidy.image, code)
    template["subdomain"] = "pair"
    template["topologySpreadConstraints"] = [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "pair"}},
        }
    ]
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "pair"},
        "spec": {
            "completions": 2,
            "parallelism": 2,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "template": {"metadata": {"labels": {"app": "pair"}}, "spec": template},
        },
    }
    tidy.apply(service("pair", headless=True), job)
    tidy.kubectl("wait", "--for=condition=complete", "job/pair", "--timeout=600s", seconds=610)
    pods = tidy.objects("pods", "--selector=app=pair")
    index = "batch.kubernetes.io/job-completion-index"
    by_index = {item["metadata"]["annotations"][index]: item for item in pods}
    assert {item["spec"]["nodeName"] for item in pods} == {"node1", "node2"}
    logs = {rank: tidy.kubectl("logs", item["metadata"]["name"]) for rank, item in by_index.items()}
    assert logs["0"].splitlines()[-1] == "sent"
    assert "hello from 0" in logs["1"].splitlines()


def test_a_pod_runs_this_environment_as_nobody_and_cannot_change_it(tidy: ClusterEnvironment) -> None:
    code = """
import os, pathlib, numpy, resources.job.job
print(os.getuid(), numpy.__version__)
for folder in ("/", "/opt/repo", "/opt/site-packages"):
    try:
        pathlib.Path(folder, "probe").write_text("")
    except OSError as error:
        print(folder, error.strerror)
"""
    tidy.apply(pod("nobody", tidy.image, code))
    assert tidy.wait_for_phase("nobody", "Succeeded", "Failed") == "Succeeded"
    lines = tidy.kubectl("logs", "nobody").splitlines()
    assert lines[0] == f"65532 {numpy.__version__}"
    assert [line.split()[0] for line in lines[1:]] == ["/", "/opt/repo", "/opt/site-packages"]
    assert all(line.endswith(("Read-only file system", "Permission denied")) for line in lines[1:])


def test_a_pod_reaches_s3_of_this_machine_and_nothing_beyond(tidy: ClusterEnvironment) -> None:
    code = f"""
import socket, urllib.error, urllib.request
try:
    urllib.request.urlopen({tidy.s3_endpoint_url!r}, timeout=10)
except urllib.error.HTTPError as error:
    print("S3 says", error.code)
try:
    socket.create_connection(("192.0.2.1", 80), timeout=3)
except OSError as error:
    print("beyond:", error)
"""
    tidy.apply(pod("s3", tidy.image, code))
    assert tidy.wait_for_phase("s3", "Succeeded", "Failed") == "Succeeded"
    said = tidy.kubectl("logs", "s3").splitlines()
    assert said[0] == "S3 says 403"  # it is S3, and nobody asks without credentials
    assert said[1].startswith("beyond: ")


@pytest.mark.parametrize("asking", [1, 2])
def test_a_service_address_leads_to_its_pod_from_every_node(tidy: ClusterEnvironment, asking: int) -> None:
    tidy.apply(service("answer", headless=False), pod("answer", tidy.image, LISTEN, node=1))
    tidy.apply(pod("asking", tidy.image, ask("answer"), node=asking))
    assert tidy.wait_for_phase("asking", "Succeeded", "Failed") == "Succeeded"
    assert tidy.kubectl("logs", "asking").splitlines()[-1] == "answer"


@pytest.mark.alone
def test_a_killed_node_takes_every_process_with_it_and_comes_back_empty(tidy: ClusterEnvironment) -> None:
    tidy.apply(pod("victim", tidy.image, SLEEP, node=2))
    waited_for(lambda: "sleeping" in logs_so_far(tidy, "victim"), "the pod to run", 300)
    before = running_on_node_2(tidy)
    assert len(sleepers_of(before)) == 2  # the program and its child

    tidy.cluster.kill_node(2)
    waited_for(lambda: not any(map(processes.alive, before)), "the kernel to bury what was killed", 300)
    assert tidy.cluster.node_pids(2) == []
    assert waited_for(lambda: not ready(tidy, 2), "node2 to be NotReady", NOTICED_SECONDS) > 1
    assert ready(tidy, 1)

    tidy.cluster.start_node(2)
    assert ready(tidy, 2)
    tidy.kubectl("delete", "pod", "victim", "--force", "--grace-period=0")
    tidy.apply(pod("next", tidy.image, "print('here')", node=2))
    assert tidy.wait_for_phase("next", "Succeeded", "Failed") == "Succeeded"


@pytest.mark.alone
def test_pods_of_a_node_that_is_only_cut_off_go_on(tidy: ClusterEnvironment) -> None:
    tidy.apply(pod("stays", tidy.image, SLEEP, node=2))
    waited_for(lambda: "sleeping" in logs_so_far(tidy, "stays"), "the pod to run", 300)
    before = sleepers_of(running_on_node_2(tidy))
    assert len(before) == 2
    tidy.cluster.cut_node(2)
    waited_for(lambda: not ready(tidy, 2), "node2 to be NotReady", NOTICED_SECONDS)
    assert sleepers_of(running_on_node_2(tidy)) == before
    tidy.cluster.mend_node(2)
    waited_for(lambda: ready(tidy, 2), "node2 to be Ready", NOTICED_SECONDS)
    [status] = tidy.pod("stays")["status"]["containerStatuses"]
    assert status["restartCount"] == 0
    assert "running" in status["state"]


@pytest.mark.alone
@pytest.mark.parametrize("part", ["kube-apiserver", "etcd"])
def test_what_was_said_before_the_control_plane_died_is_still_known(
    tidy: ClusterEnvironment, part: str
) -> None:
    name = f"kept-{time.monotonic_ns()}"
    tidy.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}})
    tidy.cluster.kill(part)
    tidy.cluster.restart(part)
    kept = json.loads(tidy.kubectl("get", "configmap", name, "--output=json"))
    assert kept["data"] == {"a": "1"}


def running_on_node_2(cluster: ClusterEnvironment) -> list[Process]:
    found = (processes.process_of("node2", pid) for pid in cluster.cluster.node_pids(2))
    return [process for process in found if process]


def sleepers_of(found: list[Process]) -> set[Process]:
    """Return the pod's own processes, without those of the runtime, which come and go."""
    return {process for process in found if is_running(process, "sleep(3600)")}


def logs_so_far(cluster: ClusterEnvironment, name: str) -> str:
    """Return a pod's log; empty while its node is just back and resets old connections."""
    if cluster.pod(name)["status"]["phase"] != "Pending":
        with suppress(CommandFailed):
            return cluster.kubectl("logs", name)
    return ""


def is_running(process: Process, text: str) -> bool:
    with suppress(OSError):  # it ended meanwhile
        return text.encode() in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    return False
