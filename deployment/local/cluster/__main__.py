"""`python -m deployment.local.cluster up|down|status|kill-node N|start-node N|cut-node N|mend-node N`."""

import argparse
import os
import sys
import time
from pathlib import Path

from deployment.local.build import BuildFailed
from deployment.local.cluster import cluster
from deployment.local.cluster.api import ApiSilent
from deployment.local.cluster.cluster import Cluster
from deployment.local.cluster.commands import CommandFailed
from deployment.local.cluster.layout import Layout
from deployment.local.cluster.machine import MachineUnfit
from deployment.local.cluster.record import NoCluster
from deployment.local.processes import ServerFailed

ERRORS = (ApiSilent, BuildFailed, CommandFailed, MachineUnfit, NoCluster, ServerFailed, ValueError)


def main() -> int:
    """Exit status: 0 done, 1 with one message otherwise."""
    parser = argparse.ArgumentParser(prog="python -m deployment.local.cluster", description=__doc__)
    parser.add_argument(
        "--state", type=Path, default=Path(os.environ.get("CLUSTER_STATE") or "build/cluster")
    )
    parser.add_argument("--name", default=os.environ.get("CLUSTER_NAME") or Layout.name)
    parser.add_argument("--network", default=os.environ.get("CLUSTER_NETWORK") or Layout.network)
    actions = parser.add_subparsers(dest="action", required=True)
    for action in ("up", "down", "status"):
        actions.add_parser(action)
    for action in ("kill-node", "start-node", "cut-node", "mend-node"):
        actions.add_parser(action).add_argument("node", type=int)
    asked = parser.parse_args()
    began = time.monotonic()
    try:
        layout = Layout(asked.state.resolve(), asked.name, asked.network)
        _act(asked, layout)
    except ERRORS as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if asked.action != "status":
        sys.stderr.write(f"{asked.action} took {time.monotonic() - began:.1f} s.\n")
    return 0


def _act(asked: argparse.Namespace, layout: Layout) -> None:
    if asked.action == "up":
        cluster.up(layout)
    if asked.action == "down":
        cluster.down(layout)
    elif asked.action in {"up", "status"}:
        sys.stdout.write("\n".join([*cluster.status(layout), ""]))
    else:
        getattr(Cluster(layout.state), asked.action.replace("-", "_"))(asked.node)


if __name__ == "__main__":
    raise SystemExit(main())
