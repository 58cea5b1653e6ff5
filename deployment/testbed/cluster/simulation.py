"""Simulated nodes (KWOK): they accept pods and report them as running, for jobs larger than any machine.

Here: the process that simulates the nodes, and the nodes. Their pods have no processes and no logs.
"""

import json
from pathlib import Path

from deployment.testbed import processes
from deployment.testbed.build import build
from deployment.testbed.cluster import cluster_parts
from deployment.testbed.cluster.cluster_record import ClusterRecord
from deployment.testbed.cluster.control import GRACE_SECONDS

PROCESS = "kwok"
TAINT = "kwok.x-k8s.io/node"
"""Taint of every simulated node: only pods that tolerate it are placed there."""
LABEL = {"ml-assets/simulated": "yes"}
GPUS = 8
"""GPUs of each node."""
_STAGES = Path(__file__).with_name("simulation.yaml")


def add_nodes(held: ClusterRecord, count: int) -> None:
    """Create `count` simulated nodes with `GPUS` GPUs each. Raise `BuildFailed` or `CommandFailed`."""
    command = [
        build("kwok") / "kwok",
        f"--kubeconfig={held.layout.kubeconfig}",
        f"--manage-nodes-with-label-selector={_selector()}",
        # Heartbeats are due before the controller manager declares a node lost.
        f"--node-lease-duration-seconds={2 * GRACE_SECONDS}",
        f"--config={_STAGES}",
    ]
    cluster_parts.start_beside_control(held, PROCESS, command)
    nodes = {"apiVersion": "v1", "kind": "List", "items": [_node(number) for number in range(count)]}
    cluster_parts.kubectl(
        held, "apply", "--server-side", "--filename=-", stdin=json.dumps(nodes), seconds=120
    )


def remove_nodes(held: ClusterRecord) -> None:
    """Remove all simulated nodes, and the process that simulates them."""
    cluster_parts.kubectl(held, "delete", "nodes", f"--selector={_selector()}", seconds=120)
    if PROCESS in held.processes:
        processes.kill(held.processes.pop(PROCESS))
        held.save()


def _selector() -> str:
    return ",".join(f"{key}={value}" for key, value in LABEL.items())


def _node(number: int) -> dict[str, object]:
    name = f"simulated-{number}"
    disk = {"ephemeral-storage": "4Ti"}
    has = {"cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": str(GPUS), **disk}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {**LABEL, "kubernetes.io/hostname": name}},
        "spec": {"taints": [{"key": TAINT, "value": "fake", "effect": "NoSchedule"}]},
        "status": {"allocatable": has, "capacity": has},
    }
