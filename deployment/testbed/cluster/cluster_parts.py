"""Starting and ending parts of a cluster, and giving them images; each change is recorded at once. Living parts stay.

Here: one part at a time. The order of all parts is in `local_cluster`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from deployment.testbed import processes
from deployment.testbed.cluster import api_server, certificates, cgroups, control, network, node
from deployment.testbed.cluster.cluster_layout import NodeLayout
from deployment.testbed.cluster.cluster_record import ClusterRecord, NoCluster
from deployment.testbed.cluster.commands import run
from deployment.testbed.cluster.layers import Layer, link_layers

READY_SECONDS = 90.0


def _dead(held: ClusterRecord, name: str) -> bool:
    return name not in held.processes or not processes.alive(held.processes[name])


def start_control(held: ClusterRecord, names: Iterable[str]) -> None:
    """Return parts of the control plane by name. Raise `NoCluster` for an unknown name."""
    layout = held.layout
    known = control.commands(layout, held.programs, certificates.Pki(layout.pki), held.ports)
    for name in names:
        if name not in known:
            raise NoCluster(f"The control plane has no {name}. It has: {', '.join(known)}.")
        start_beside_control(held, name, known[name])


def start_beside_control(held: ClusterRecord, name: str, command: Sequence[str | Path]) -> bool:
    """Start a process of this machine in the control plane's cgroup; return False if it is alive already."""
    if not _dead(held, name):
        return False
    layout = held.layout
    enter = cgroups.enter_command(f"{layout.name}/control", command)
    held.processes[name] = processes.start(name, enter, log=layout.log(name))
    held.save()
    return True


def kubectl(held: ClusterRecord, *words: str | Path, stdin: str = "", seconds: float = 60.0) -> str:
    """Return kubectl's output. Raise `CommandFailed`."""
    return run(control.kubectl(held.layout, held.programs, words), stdin=stdin, seconds=seconds)


def start_forward(held: ClusterRecord, outside: int) -> None:
    """Start socat, from a port of the bridge address to a port of loopback."""
    name = f"forward-{outside}"
    address = held.layout.address
    listen = f"TCP-LISTEN:{outside},bind={address},reuseaddr,fork"
    if start_beside_control(held, name, ["socat", listen, f"TCP:127.0.0.1:{held.forwards[outside]}"]):
        processes.wait_ready(
            held.processes[name],
            lambda: "" if processes.is_listening(outside, address) else "not listening",
            seconds=10,
        )


def start_machine(held: ClusterRecord, ours: NodeLayout) -> None:
    """Start the node's parts that are needed to import images. Living parts stay."""
    machine_name, containerd_name = ours.process("machine"), ours.process("containerd")
    if _dead(held, machine_name):
        end_node(held, ours)
        held.processes[machine_name] = node.start_machine(ours)
    holder = held.processes[machine_name]
    if _dead(held, containerd_name):
        held.processes[containerd_name] = node.start_containerd(ours, holder, held.pause_image)
    held.save()


def start_nodes(held: ClusterRecord, numbers: Iterable[int]) -> None:
    """Start whole nodes; return when they are Ready."""
    began = datetime.now(UTC)
    started: list[NodeLayout] = []
    for ours in map(held.layout.node, numbers):
        start_machine(held, ours)
        import_images(held, held.archives, [ours.number])
        holder = held.processes[ours.process("machine")]
        for program, start in (("kubelet", node.start_kubelet), ("kube-proxy", node.start_proxy)):
            if _dead(held, ours.process(program)):
                held.processes[ours.process(program)] = start(
                    ours, holder, held.programs, certificates.Pki(held.layout.pki)
                )
                started.append(ours)
        held.save()
    for ours in started:
        processes.wait_ready(
            held.processes[ours.process("kubelet")], _node_question(ours, began), READY_SECONDS
        )


def _node_question(ours: NodeLayout, since: datetime) -> Callable[[], str]:
    return lambda: api_server.why_node_not(ours.cluster, ours.name, since)


def end_node(held: ClusterRecord, ours: NodeLayout) -> None:
    """Kill a node: first the cable, then every process at once."""
    network.cut(ours)
    cgroups.end(ours.cgroup)
    cgroups.remove(ours.cgroup)
    network.unplug(ours)
    for name in [name for name in held.processes if name.endswith(f"-{ours.name}")]:
        del held.processes[name]
    held.save()


def import_images(
    held: ClusterRecord, archives: Mapping[str, Path], numbers: Iterable[int], below: Sequence[Layer] = ()
) -> None:
    """Import missing images on all nodes at once. `below`: layers that the archives leave out."""

    def to_node(number: int) -> None:
        ours = held.layout.node(number)
        holder = held.processes[ours.process("machine")]
        if below:
            link_layers(ours, holder, below)
        for image, archive in archives.items():
            node.import_image(ours, holder, image, archive)

    with ThreadPoolExecutor() as pool:
        list(pool.map(to_node, numbers))
