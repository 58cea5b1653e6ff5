"""A whole cluster: start, end, and faults in between.

Here: the order of the steps, and `LocalCluster` for tests. The modules beside this one make the parts.
"""

import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from deployment.testbed import processes
from deployment.testbed.build import build
from deployment.testbed.cluster import (
    api_server,
    certificates,
    cgroups,
    cluster_parts,
    cluster_record,
    control,
    fitness,
    images,
    jobsets,
    network,
    node,
    policy_agent,
    queues,
    simulation,
    trainjobs,
)
from deployment.testbed.cluster.cluster_layout import ClusterLayout
from deployment.testbed.cluster.cluster_record import ClusterRecord, NoCluster
from deployment.testbed.cluster.commands import run
from deployment.testbed.cluster.layers import Layer
from deployment.testbed.cluster.leftovers import leftovers
from deployment.testbed.processes import Process, ServerFailed


class LocalCluster:
    """One running cluster, identified by its state folder. Several objects and processes may use the same cluster."""

    def __init__(self, state: Path) -> None:
        """Open the cluster. Raise `NoCluster` if none was started in the folder."""
        self.state = state
        self.layout = cluster_record.load(state).layout

    @property
    def kubeconfig(self) -> Path:
        return self.layout.kubeconfig

    @property
    def context(self) -> str:
        return self.layout.context

    @property
    def image(self) -> str:
        """Return the name of the base image on every node: this machine's Debian with Python."""
        return cluster_record.load(self.state).base_image

    def archive(self, image: str) -> Path:
        """Return the archive from which one of the nodes' own images was imported."""
        return cluster_record.load(self.state).archives[image]

    def kubectl(self, *words: str, stdin: str = "", seconds: float = 60.0) -> str:
        """Return kubectl's output. Raise `CommandFailed`."""
        return cluster_parts.kubectl(cluster_record.load(self.state), *words, stdin=stdin, seconds=seconds)

    def objects(self, kind: str, *words: str) -> list[dict[str, Any]]:
        """Return all objects of a kind from kubectl's JSON; `words` are further options."""
        return json.loads(self.kubectl("get", kind, "--output=json", *words))["items"]

    def server_version(self) -> str:
        """Return the version that the API server reports. Raise `ApiSilent`."""
        return api_server.get(self.layout, "/version")["gitVersion"]

    def address_for_pods(self, port: int) -> str:
        """Forward a port of this machine's loopback; return HOST:PORT at which pods reach it."""
        with cluster_record.changing(self.layout.name):
            held = cluster_record.load(self.state)
            outside = next((own for own, target in held.forwards.items() if target == port), None)
            if outside is None:
                outside = processes.free_port(self.layout.address)
                held.forwards[outside] = port
            cluster_parts.start_forward(held, outside)
        return f"{self.layout.address}:{outside}"

    def kill(self, name: str) -> None:
        """Send SIGKILL to a part of the control plane: etcd, kube-apiserver, kube-controller-manager, …"""
        processes.kill(self._process(name))

    def restart(self, name: str) -> None:
        """Start a dead part of the control plane again with the same addresses. Return when the API is ready."""
        with cluster_record.changing(self.layout.name):
            held = cluster_record.load(self.state)
            cluster_parts.start_control(held, [name])
            if name in {"etcd", "kube-apiserver"}:
                processes.wait_ready(
                    held.processes["kube-apiserver"],
                    lambda: api_server.why_not_ready(self.layout),
                    cluster_parts.READY_SECONDS,
                )

    def kill_node(self, number: int) -> None:
        """Cut the power of a node: its network first, then every process. /run and mounts are lost; disks stay."""
        with cluster_record.changing(self.layout.name):
            held = cluster_record.load(self.state)
            cluster_parts.end_node(held, self.layout.node(number))

    def start_node(self, number: int) -> None:
        """Switch a killed node on again; return when it is Ready. Do nothing if it runs."""
        with cluster_record.changing(self.layout.name):
            cluster_parts.start_nodes(cluster_record.load(self.state), [number])

    def cut_node(self, number: int) -> None:
        """Pull the node's cable. Its pods run on, unreachable, until `mend_node`."""
        network.cut(self.layout.node(number))

    def mend_node(self, number: int) -> None:
        """Plug the node's cable in again."""
        network.mend(self.layout.node(number))

    def node_pids(self, number: int) -> list[int]:
        """Return the ids, on this machine, of all processes of a node and of its pods."""
        return cgroups.members(self.layout.node(number).cgroup)

    def import_image(
        self,
        image: str,
        archive: Path,
        numbers: Iterable[int] | None = None,
        *,
        below: Sequence[Layer] = (),
    ) -> None:
        """Give the running nodes `numbers` (all by default) an image from a docker-archive or OCI archive.

        The archive may leave out the lowest layers of the image. Nodes get those layers, `below` from the bottom, by
        hard links.
        """
        held = cluster_record.load(self.state)
        cluster_parts.import_images(
            held, {image: archive}, self.layout.numbers if numbers is None else numbers, below
        )

    def remove_image(self, image: str) -> None:
        """Remove an image from all running nodes, and free its disk."""
        held = cluster_record.load(self.state)
        for number in self.layout.numbers:
            ours = self.layout.node(number)
            holder = held.processes[ours.process("machine")]
            run(node.ctr(ours, holder, "images", "remove", "--sync", image), seconds=120)

    def add_queues(self) -> None:
        """Install Kueue; return when it accepts Jobs."""
        with cluster_record.changing(self.layout.name):
            queues.install(cluster_record.load(self.state))

    def add_jobsets(self) -> None:
        """Install JobSet; return when it accepts JobSets."""
        with cluster_record.changing(self.layout.name):
            jobsets.install(cluster_record.load(self.state))

    def add_trainjobs(self) -> None:
        """Install Kubeflow Trainer, and JobSet before it; return when it accepts TrainJobs."""
        with cluster_record.changing(self.layout.name):
            held = cluster_record.load(self.state)
            jobsets.install(held)
            trainjobs.install(held)

    def add_policies(self) -> None:
        """Enforce NetworkPolicies from now on; return when all running nodes have the rules."""
        with cluster_record.changing(self.layout.name):
            held = cluster_record.load(self.state)
            policy_agent.load_rules(self.state, {})
            command = [sys.executable, "-m", policy_agent.__name__, self.state]
            cluster_parts.start_beside_control(held, "policy-agent", command)

    def add_simulated_nodes(self, count: int) -> None:
        """Create `count` simulated nodes with `simulation.GPUS` GPUs each."""
        with cluster_record.changing(self.layout.name):
            simulation.add_nodes(cluster_record.load(self.state), count)

    def remove_simulated_nodes(self) -> None:
        """Remove all simulated nodes."""
        with cluster_record.changing(self.layout.name):
            simulation.remove_nodes(cluster_record.load(self.state))

    def down(self) -> None:
        """End all processes and remove everything that the cluster made."""
        down(self.layout)

    def _process(self, name: str) -> Process:
        held = cluster_record.load(self.state).processes
        if name not in held:
            raise NoCluster(f"The cluster in {self.state} has no {name}. It has: {', '.join(sorted(held))}.")
        return held[name]


def up(layout: ClusterLayout) -> LocalCluster:
    """Start the cluster, or its missing parts; return when all nodes are Ready.

    Raise `MachineUnfit` before anything is made. Raise `BuildFailed`, `CommandFailed` or `ServerFailed` later; then
    `down` cleans up.
    """
    if cluster_record.exists(layout.state):
        layout = cluster_record.load(layout.state).layout
    with cluster_record.changing(layout.name):
        fitness.check(layout, ours=cluster_record.exists(layout.state))
        held = _prepared(layout)
        node.make_mount_points()
        certificates.make(layout)
        cgroups.make(f"{layout.name}/control")
        network.make_bridge(layout)
        cluster_parts.start_control(held, ["etcd", "kube-apiserver"])
        for number in layout.numbers:
            cluster_parts.start_machine(held, layout.node(number))
        # While the API server starts.
        cluster_parts.import_images(held, held.archives, layout.numbers)
        processes.wait_ready(
            held.processes["kube-apiserver"],
            lambda: api_server.why_not_ready(layout),
            cluster_parts.READY_SECONDS,
        )
        cluster_parts.start_control(
            held, list(control.commands(layout, held.programs, certificates.Pki(layout.pki), held.ports))
        )
        cluster_parts.start_nodes(held, layout.numbers)
        for outside in held.forwards:
            cluster_parts.start_forward(held, outside)
        processes.wait_ready(
            held.processes["coredns"],
            lambda: processes.why_http_not(
                f"http://{layout.address}:{control.NAME_SERVICE_READY_PORT}/ready"
            ),
            cluster_parts.READY_SECONDS,
        )
        processes.wait_ready(
            held.processes["kube-controller-manager"],
            lambda: _why_no_account(layout),
            cluster_parts.READY_SECONDS,
        )
    return LocalCluster(layout.state)


def down(layout: ClusterLayout) -> None:
    """End every process of the cluster and remove everything it made. Also works on a half-made cluster, and on none.
    Raise `ServerFailed` if something is left.
    """
    if cluster_record.exists(layout.state):
        layout = cluster_record.load(layout.state).layout
    elif network.links().get(layout.bridge) != str(layout.state):
        return
    with cluster_record.changing(layout.name):
        cgroups.end(layout.name)
        cgroups.remove(layout.name)
        network.remove_bridge(layout)
        node.remove_mount_points()
        if layout.state.exists():
            shutil.rmtree(layout.state)
        if left := leftovers(layout):
            raise ServerFailed(f"Leftovers of the cluster in {layout.state}: {'; '.join(left)}.")


def status(layout: ClusterLayout) -> list[str]:
    """Return a line for each part, then a line for each node. Raise `NoCluster`."""
    held = cluster_record.load(layout.state)
    layout = held.layout
    lines = [
        f"{name:<26}{'up' if processes.alive(process) else 'DEAD':<6}pid {process.pid}"
        for name, process in sorted(held.processes.items())
    ]
    try:
        nodes = api_server.get(layout, "/api/v1/nodes")["items"]
        version = api_server.get(layout, "/version")["gitVersion"]
    except api_server.ApiSilent as error:
        return [*lines, f"The API server does not answer: {error}"]
    for item in nodes:
        ready = next((c["status"] for c in item["status"]["conditions"] if c["type"] == "Ready"), "Unknown")
        lines.append(f"{item['metadata']['name']:<26}{'Ready' if ready == 'True' else 'NotReady'}")
    lines += [f"{layout.address}:{outside} → 127.0.0.1:{port}" for outside, port in held.forwards.items()]
    return [*lines, f"Kubernetes {version} at {layout.api}", f"export KUBECONFIG={layout.kubeconfig}"]


def _prepared(layout: ClusterLayout) -> ClusterRecord:
    """Return the record, written before the things that it names are made. Programs and images are made here if they
    are missing.
    """
    if cluster_record.exists(layout.state):
        return cluster_record.load(layout.state)
    with ThreadPoolExecutor() as pool:
        # Images are mostly downloads, programs are mostly compilation.
        making = pool.submit(images.make)
        programs = control.Programs(build("kubernetes"), build("coredns"))
        made = making.result()
    held = ClusterRecord(
        layout=layout,
        ports=cluster_record.new_ports(),
        programs=programs,
        base_image=made.base,
        pause_image=made.pause,
        archives=made.archives,
    )
    held.save()
    return held


def _why_no_account(layout: ClusterLayout) -> str:
    """Wait for the default service account of the namespace. Pods can be created only after it exists."""
    try:
        api_server.get(layout, "/api/v1/namespaces/default/serviceaccounts/default")
    except api_server.ApiSilent as error:
        return str(error)
    return ""
