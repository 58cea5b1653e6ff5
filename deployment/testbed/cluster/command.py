"""Command line `python -m deployment.testbed cluster up|down|status|add-policies|kill-node N|start-node N|…`."""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from deployment.testbed.cluster import local_cluster
from deployment.testbed.cluster.cluster_layout import ClusterLayout
from deployment.testbed.cluster.local_cluster import LocalCluster
from deployment.testbed.cluster.simulation import GPUS
from deployment.testbed.processes import ServerFailed

DEFAULT = Path("build") / "cluster"


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit status. Raise `ServerFailed` or `BuildFailed`."""
    parser = argparse.ArgumentParser(prog="python -m deployment.testbed cluster", description=__doc__)
    parser.add_argument(
        "--state",
        type=Path,
        default=Path(os.environ.get("CLUSTER_STATE") or DEFAULT),
        help="folder of this cluster, on a plain disk ($CLUSTER_STATE, else %(default)s)",
    )
    parser.add_argument(
        "--name",
        default=os.environ.get("CLUSTER_NAME") or ClusterLayout.name,
        help="name of its bridge and cgroups ($CLUSTER_NAME, else %(default)s)",
    )
    parser.add_argument(
        "--network",
        default=os.environ.get("CLUSTER_NETWORK") or ClusterLayout.network,
        help="first two numbers of its addresses ($CLUSTER_NETWORK, else %(default)s)",
    )
    actions = parser.add_subparsers(dest="action", required=True)
    for action, what in (
        ("up", "build, start, wait until all nodes are ready; running parts stay as they are"),
        ("down", "end every process and remove everything that the cluster made"),
        ("status", "show each process and node, and the addresses of the cluster"),
        (
            "add-queues",
            "install Kueue: queues with quotas, for namespaces with the label ml-assets/queues=yes",
        ),
        ("add-jobsets", "install JobSet, which restarts the Jobs of trainings (back end jobset)"),
        ("add-trainjobs", "install Kubeflow Trainer and JobSet, which it needs (back end trainjob)"),
        ("add-policies", "enforce NetworkPolicies, which are only stored without this"),
    ):
        actions.add_parser(action, help=what)
    for action, what in (
        ("kill-node", "cut its network and end every process in its cgroups at once"),
        ("start-node", "switch a killed node on again"),
        ("cut-node", "pull its network cable; its pods run on"),
        ("mend-node", "plug the cable back in"),
    ):
        actions.add_parser(action, help=what).add_argument("number", type=int, metavar="node", help="1, 2, …")
    actions.add_parser(
        "add-simulated-nodes",
        help=f"add simulated nodes of {GPUS} GPUs: pods on them do nothing",
    ).add_argument("number", type=int, metavar="count", help="number of nodes")
    asked = parser.parse_args(arguments)
    try:
        layout = ClusterLayout(asked.state.resolve(), asked.name, asked.network)
    except ValueError as error:
        raise ServerFailed(str(error)) from error
    began = time.monotonic()
    _act(asked, layout)
    if asked.action != "status":
        sys.stderr.write(f"{asked.action} took {time.monotonic() - began:.1f} s.\n")
    return 0


def _act(asked: argparse.Namespace, layout: ClusterLayout) -> None:
    if asked.action == "up":
        local_cluster.up(layout)
    if asked.action == "down":
        local_cluster.down(layout)
    elif asked.action in {"up", "status"}:
        sys.stdout.write("\n".join([*local_cluster.status(layout), ""]))
    else:
        numbers = [asked.number] if "number" in asked else []
        getattr(LocalCluster(layout.state), asked.action.replace("-", "_"))(*numbers)
