"""Start and end of a cluster: nothing of it stays on the machine, and nothing that others own changes.

Each test starts its own cluster. Name and network differ from those of the cluster that the other tests share.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from deployment.testbed import processes
from deployment.testbed.cluster import cgroups, cluster_record, network, node
from deployment.testbed.cluster.cluster_layout import ClusterLayout
from deployment.testbed.cluster.commands import run
from deployment.testbed.cluster.fitness import MachineUnfit
from deployment.testbed.cluster.local_cluster import LocalCluster, down, up
from deployment.testbed.processes import Process
from ml_assets_tests.cluster.cluster_environment import REPOSITORY, pod, waited_for

# Alone: a pod of another cluster that starts meanwhile sees the mounts of these.
pytestmark = pytest.mark.alone

NAME = "mlt"
NETWORK = "10.123"
SHARED = (
    "/etc/cni", "/opt/cni", "/opt/containerd", "/run/containerd", "/run/netns", "/run/runc", "/usr/libexec/kubernetes",
    "/var/lib/cni", "/var/lib/containerd", "/var/lib/kubelet", "/var/log/containers", "/var/log/pods",
)  # fmt: skip
"""Default folders of Kubernetes' programs: places of the machine, not of a cluster."""


@pytest.fixture
def layout(tmp_path: Path) -> Iterator[ClusterLayout]:
    layout = ClusterLayout(tmp_path / "cluster", NAME, NETWORK)
    yield layout
    down(layout)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterLayout]:
    """A cluster that is up, for the last tests: it has the name that those before need to be free."""
    layout = ClusterLayout(tmp_path_factory.mktemp("running") / "cluster", NAME, NETWORK)
    up(layout)
    yield layout
    down(layout)


@dataclass(frozen=True)
class Surroundings:
    """State of the machine that a cluster could leave changed."""

    folders: dict[str, list[str] | None]
    tables: str
    forwarding: str

    @classmethod
    def now(cls) -> "Surroundings":
        folders = {
            folder: sorted(map(str, Path(folder).rglob("*"))) if Path(folder).exists() else None
            for folder in SHARED
        }
        forwarding = Path("/proc/sys/net/ipv4/ip_forward").read_text()
        return cls(folders, run(["nft", "list", "ruleset"]), forwarding)


def traces(layout: ClusterLayout, namespaces: set[str]) -> list[str]:
    """Return everything on this machine that names the cluster or belongs to it."""
    found: list[str] = []
    mark = str(layout.state)
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            line = (entry / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
            own = held_by(entry)
            mounts = (entry / "mountinfo").read_text()
        except OSError:
            continue  # ended meanwhile
        if mark in line or own & namespaces:
            found.append(f"process {entry.name}: {line}")
        if mark in mounts:
            found.append(f"mounts of process {entry.name}")
    links = json.loads(run(["ip", "-json", "link", "show"]))
    found += [f"link {link['ifname']}" for link in links if link["ifname"].startswith(NAME)]
    found += [f"route {route}" for route in run(["ip", "route"]).splitlines() if f"{NETWORK}." in route]
    found += [f"cgroup {folder}" for folder in cgroups.ROOT.glob(f"**/{NAME}")]
    found += [
        f"socket {line}" for line in run(["ss", "-alnH"]).splitlines() if mark in line or NETWORK in line
    ]
    return [*found, *([f"folder {mark}"] if layout.state.exists() else [])]


def held_by(process: Path) -> set[str]:
    """The network and mount namespaces of a process in /proc."""
    return {str((process / "ns" / kind).readlink()) for kind in ("net", "mnt")}


def namespaces_of(cluster: LocalCluster) -> set[str]:
    """Network and mount namespaces of the nodes and of their pods."""
    own = held_by(Path("/proc/self"))
    found: set[str] = set()
    for number in cluster.layout.numbers:
        for pid in cluster.node_pids(number):
            found |= held_by(Path(f"/proc/{pid}"))
    return found - own


def pids(layout: ClusterLayout) -> dict[str, int]:
    return {name: process.pid for name, process in cluster_record.load(layout.state).processes.items()}


def test_the_network_of_services_is_refused(tmp_path: Path) -> None:
    """A cluster on it came up, and half of its connections went nowhere."""
    with pytest.raises(ValueError, match="choose another network"):
        ClusterLayout(tmp_path, NAME, "10.96")


def test_down_with_running_pods_leaves_nothing(layout: ClusterLayout) -> None:
    before = Surroundings.now()
    began = time.monotonic()
    cluster = up(layout)
    up_seconds = time.monotonic() - began
    code = "import time; time.sleep(3600)"
    for number in layout.numbers:
        item = pod(f"sleeper{number}", cluster.image, code, node=number)
        cluster.kubectl("apply", "--filename=-", stdin=json.dumps(item))
    cluster.kubectl("wait", "--for=condition=Ready", "pods", "--all", "--timeout=600s", seconds=610)
    cluster.address_for_pods(9)
    namespaces = namespaces_of(cluster)
    assert len(namespaces) >= 2 * layout.nodes
    everything = [
        process for pid in cgroups.members(NAME) if (process := processes.process_of("cluster", pid))
    ]
    assert traces(layout, namespaces)  # what is looked for can be found
    machine = cluster_record.load(layout.state).processes[layout.node(1).process("machine")]
    # A short command inside a node may outlive who asked for it.
    asked = subprocess.Popen(node.inside(layout.node(1), machine, ["sleep", "600"]))
    waited_for(lambda: asked.pid in cgroups.members(NAME), "the command to be one of the cluster's", 300)

    began = time.monotonic()
    down(layout)
    # Nothing is waited for: on a machine so slow that this takes 30 s, making the cluster takes longer.
    assert time.monotonic() - began < max(30, up_seconds)
    assert asked.wait(timeout=1) == -signal.SIGKILL
    # The kernel takes a moment to dissolve a network namespace after its last process.
    waited_for(
        lambda: not traces(layout, namespaces),
        "every trace to be gone",
        300,
        lambda: "\n".join(traces(layout, namespaces)),
    )
    assert not [process.pid for process in everything if processes.alive(process)]
    assert Surroundings.now() == before


def test_a_killed_start_is_cleaned_up_by_down_too(layout: ClusterLayout) -> None:
    before = Surroundings.now()
    command = [sys.executable, "-m", "deployment.testbed", "cluster", "--state", layout.state,
               "--name", NAME, "--network", NETWORK, "up"]  # fmt: skip
    with subprocess.Popen(command, cwd=REPOSITORY) as starting:
        waited_for(lambda: bool(cgroups.members(f"{NAME}/node1")), "the first node to start", 300)
        starting.send_signal(signal.SIGKILL)
    members = [process for pid in cgroups.members(NAME) if (process := processes.process_of("x", pid))]
    assert members
    down(layout)
    waited_for(lambda: not traces(layout, set()), "every trace to be gone", 300)
    assert not [process.pid for process in members if processes.alive(process)]
    assert Surroundings.now() == before


def test_a_link_of_that_name_is_refused_and_left_alone(layout: ClusterLayout) -> None:
    run(["ip", "link", "add", "name", layout.bridge, "type", "bridge"])
    try:
        with pytest.raises(
            MachineUnfit, match=rf"link {layout.bridge} exists.*another name \(CLUSTER_NAME\)"
        ):
            up(layout)
        down(layout)
        assert layout.bridge in network.links()
    finally:
        run(["ip", "link", "delete", layout.bridge])


def test_cgroups_of_that_name_are_refused_and_their_processes_left_alone(layout: ClusterLayout) -> None:
    cgroups.make(NAME)
    sleeper: Process | None = None
    try:
        command = cgroups.enter_command(NAME, ["sleep", "600"])
        sleeper = processes.start("sleeper", command, log=layout.state.parent / "log")
        with pytest.raises(MachineUnfit, match=f"Cgroups of .*/{NAME}"):
            up(layout)
        down(layout)
        assert processes.alive(sleeper)
    finally:
        if sleeper is not None:
            processes.kill(sleeper)
        cgroups.remove(NAME)


def test_a_network_that_is_in_use_is_refused(layout: ClusterLayout) -> None:
    run(["ip", "route", "add", "unreachable", f"{NETWORK}.7.0/24"])
    try:
        with pytest.raises(MachineUnfit, match=rf"routes into {NETWORK}\.0\.0/16: .*CLUSTER_NETWORK"):
            up(layout)
    finally:
        run(["ip", "route", "delete", "unreachable", f"{NETWORK}.7.0/24"])


def test_a_user_without_rights_is_told_what_is_missing(tmp_path: Path) -> None:
    code = f"""
import os
from pathlib import Path
from deployment.testbed.cluster import fitness
from deployment.testbed.cluster.cluster_layout import ClusterLayout
os.setuid(65534)
fitness.check(ClusterLayout(Path({str(tmp_path / "cluster")!r}), {NAME!r}, {NETWORK!r}), ours=False)
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert "MachineUnfit: No cluster" in ended.stderr
    assert "run this as root" in ended.stderr
    assert not list(tmp_path.iterdir())


def test_a_second_up_changes_nothing_and_mends_what_died(running: ClusterLayout) -> None:
    first = pids(running)
    up(running)
    assert pids(running) == first
    LocalCluster(running.state).kill("kube-scheduler")
    up(running)
    assert {name for name, pid in pids(running).items() if pid != first[name]} == {"kube-scheduler"}


def test_ports_of_the_cluster_are_not_open_to_the_world(running: ClusterLayout) -> None:
    members = set(cgroups.members(NAME))
    listening = [
        line for line in run(["ss", "-tlnpH"]).splitlines() if any(f"pid={pid}," in line for pid in members)
    ]
    assert listening
    addresses = {line.split()[3].rpartition(":")[0] for line in listening}
    assert addresses <= {"127.0.0.1", "[::1]", running.address}, listening
