"""A whole cluster: up, down, and what can happen to it in between.

What belongs here: the order of things. How each part is made is in the modules beside. The Cluster object is what
tests hold.
"""

import json
import shutil
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from deployment.testbed import processes
from deployment.testbed.build import build
from deployment.testbed.cluster import (
    api,
    certificates,
    cgroups,
    control,
    images,
    machine,
    network,
    node,
    parts,
    queues,
    record,
    simulation,
)
from deployment.testbed.cluster.commands import run
from deployment.testbed.cluster.layers import Layer
from deployment.testbed.cluster.layout import Layout
from deployment.testbed.cluster.leftovers import leftovers
from deployment.testbed.cluster.record import NoCluster, Record
from deployment.testbed.processes import Process, ServerFailed


class Cluster:
    """One running cluster, known by its state folder; several objects and processes may hold the same."""

    def __init__(self, state: Path) -> None:
        """Raises NoCluster if none was started there."""
        self.state = state
        self.layout = record.load(state).layout

    @property
    def kubeconfig(self) -> Path:
        return self.layout.kubeconfig

    @property
    def context(self) -> str:
        return self.layout.context

    @property
    def image(self) -> str:
        """The base image every node has: this machine's Debian with Python."""
        return record.load(self.state).base_image

    def archive(self, image: str) -> Path:
        """The archive one of the nodes' own images was imported from."""
        return record.load(self.state).archives[image]

    def kubectl(self, *words: str, stdin: str = "", seconds: float = 60.0) -> str:
        """Return kubectl's output. Raises CommandFailed."""
        return parts.kubectl(record.load(self.state), *words, stdin=stdin, seconds=seconds)

    def objects(self, kind: str, *words: str) -> list[dict[str, Any]]:
        """All objects of a kind, as kubectl's JSON has them; `words` are more of its options."""
        return json.loads(self.kubectl("get", kind, "--output=json", *words))["items"]

    def server_version(self) -> str:
        """As the API server itself says. Raises ApiSilent."""
        return api.get(self.layout, "/version")["gitVersion"]

    def address_for_pods(self, port: int) -> str:
        """HOST:PORT at which pods reach `port` of this machine's loopback; forwarded from now on."""
        with record.changing(self.layout.name):
            held = record.load(self.state)
            outside = next((own for own, target in held.forwards.items() if target == port), None)
            if outside is None:
                outside = processes.free_port(self.layout.address)
                held.forwards[outside] = port
            parts.start_forward(held, outside)
        return f"{self.layout.address}:{outside}"

    def kill(self, name: str) -> None:
        """SIGKILL to a part of the control plane: etcd, kube-apiserver, kube-controller-manager, …"""
        processes.kill(self._process(name))

    def restart(self, name: str) -> None:
        """Start a dead part of the control plane again, with the same addresses; returns when the API is ready."""
        with record.changing(self.layout.name):
            held = record.load(self.state)
            parts.start_control(held, [name])
            if name in {"etcd", "kube-apiserver"}:
                processes.wait_ready(
                    held.processes["kube-apiserver"],
                    lambda: api.why_not_ready(self.layout),
                    parts.READY_SECONDS,
                )

    def kill_node(self, number: int) -> None:
        """A power cut: the network goes first, then every process at once; /run and mounts are lost, disks stay."""
        with record.changing(self.layout.name):
            held = record.load(self.state)
            parts.end_node(held, self.layout.node(number))

    def start_node(self, number: int) -> None:
        """Switch a killed node on again; returns when it is Ready. Nothing to do if it runs."""
        with record.changing(self.layout.name):
            parts.start_nodes(record.load(self.state), [number])

    def cut_node(self, number: int) -> None:
        """Pull the node's cable: its pods go on, unreachable, until `mend_node`."""
        network.cut(self.layout.node(number))

    def mend_node(self, number: int) -> None:
        """Plug the cable back in."""
        network.mend(self.layout.node(number))

    def node_pids(self, number: int) -> list[int]:
        """Ids, as this machine sees them, of all processes of a node and of its pods."""
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

        The archive may leave out the image's lowest layers, given as `below` from the bottom: nodes get them by links.
        """
        held = record.load(self.state)
        parts.import_images(
            held, {image: archive}, self.layout.numbers if numbers is None else numbers, below
        )

    def remove_image(self, image: str) -> None:
        """Have all running nodes forget an image, and free its disk."""
        held = record.load(self.state)
        for number in self.layout.numbers:
            ours = self.layout.node(number)
            holder = held.processes[ours.process("machine")]
            run(node.ctr(ours, holder, "images", "remove", "--sync", image), seconds=120)

    def add_queues(self) -> None:
        """Install Kueue; returns when it takes Jobs."""
        with record.changing(self.layout.name):
            queues.install(record.load(self.state))

    def add_simulated_nodes(self, count: int) -> None:
        """Have `count` nodes of `simulation.GPUS` GPUs that only seem to be there."""
        with record.changing(self.layout.name):
            simulation.add_nodes(record.load(self.state), count)

    def remove_simulated_nodes(self) -> None:
        """All of them."""
        with record.changing(self.layout.name):
            simulation.remove_nodes(record.load(self.state))

    def down(self) -> None:
        """End it all and remove everything it made."""
        down(self.layout)

    def _process(self, name: str) -> Process:
        held = record.load(self.state).processes
        if name not in held:
            raise NoCluster(f"The cluster in {self.state} has no {name}. It has: {', '.join(sorted(held))}.")
        return held[name]


def up(layout: Layout) -> Cluster:
    """Start the cluster, or what is missing of it; returns when all nodes are Ready.

    Raises MachineUnfit before anything is made; BuildFailed, CommandFailed or ServerFailed later, and then `down`
    cleans up.
    """
    if record.exists(layout.state):
        layout = record.load(layout.state).layout
    with record.changing(layout.name):
        machine.check(layout, ours=record.exists(layout.state))
        held = _prepared(layout)
        node.make_mount_points()
        certificates.make(layout)
        cgroups.make(f"{layout.name}/control")
        network.make_bridge(layout)
        parts.start_control(held, ["etcd", "kube-apiserver"])
        for number in layout.numbers:
            parts.start_machine(held, layout.node(number))
        # While the API server starts.
        parts.import_images(held, held.archives, layout.numbers)
        processes.wait_ready(
            held.processes["kube-apiserver"], lambda: api.why_not_ready(layout), parts.READY_SECONDS
        )
        parts.start_control(
            held, list(control.commands(layout, held.programs, certificates.Pki(layout.pki), held.ports))
        )
        parts.start_nodes(held, layout.numbers)
        for outside in held.forwards:
            parts.start_forward(held, outside)
        processes.wait_ready(
            held.processes["coredns"],
            lambda: processes.why_http_not(
                f"http://{layout.address}:{control.NAME_SERVICE_READY_PORT}/ready"
            ),
            parts.READY_SECONDS,
        )
        processes.wait_ready(
            held.processes["kube-controller-manager"], lambda: _why_no_account(layout), parts.READY_SECONDS
        )
    return Cluster(layout.state)


def down(layout: Layout) -> None:
    """End every process of the cluster and remove all it made. Works on a half-made one, and on none.

    Raises ServerFailed if something is left.
    """
    if record.exists(layout.state):
        layout = record.load(layout.state).layout
    elif network.links().get(layout.bridge) != str(layout.state):
        return
    with record.changing(layout.name):
        cgroups.end(layout.name)
        cgroups.remove(layout.name)
        network.remove_bridge(layout)
        node.remove_mount_points()
        if layout.state.exists():
            shutil.rmtree(layout.state)
        if left := leftovers(layout):
            raise ServerFailed(f"Left of the cluster of {layout.state}: {'; '.join(left)}.")


def status(layout: Layout) -> list[str]:
    """A line for each part, then one for each node. Raises NoCluster."""
    held = record.load(layout.state)
    layout = held.layout
    lines = [
        f"{name:<26}{'up' if processes.alive(process) else 'DEAD':<6}pid {process.pid}"
        for name, process in sorted(held.processes.items())
    ]
    try:
        nodes = api.get(layout, "/api/v1/nodes")["items"]
        version = api.get(layout, "/version")["gitVersion"]
    except api.ApiSilent as error:
        return [*lines, f"The API server does not answer: {error}"]
    for item in nodes:
        ready = next((c["status"] for c in item["status"]["conditions"] if c["type"] == "Ready"), "Unknown")
        lines.append(f"{item['metadata']['name']:<26}{'Ready' if ready == 'True' else 'NotReady'}")
    lines += [f"{layout.address}:{outside} → 127.0.0.1:{port}" for outside, port in held.forwards.items()]
    return [*lines, f"Kubernetes {version} at {layout.api}", f"export KUBECONFIG={layout.kubeconfig}"]


def _prepared(layout: Layout) -> Record:
    """The record, written before anything it names is made; programs and images are made here if need be."""
    if record.exists(layout.state):
        return record.load(layout.state)
    with ThreadPoolExecutor() as pool:
        # Images are mostly downloads, programs mostly compilation.
        making = pool.submit(images.make)
        programs = control.Programs(build("kubernetes"), build("coredns"))
        made = making.result()
    held = Record(
        layout=layout,
        ports=record.new_ports(),
        programs=programs,
        base_image=made.base,
        pause_image=made.pause,
        archives=made.archives,
    )
    held.save()
    return held


def _why_no_account(layout: Layout) -> str:
    """Pods can be made once the default service account of their namespace exists."""
    try:
        api.get(layout, "/api/v1/namespaces/default/serviceaccounts/default")
    except api.ApiSilent as error:
        return str(error)
    return ""
