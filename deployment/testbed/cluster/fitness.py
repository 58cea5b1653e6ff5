"""Check if this machine can run a cluster, before anything is made: by a trial if possible.

Here: one error that lists every missing feature with its remedy.
"""

import os
import shutil
from collections.abc import Iterator

from deployment.testbed.cluster import cgroups, network
from deployment.testbed.cluster.cluster_layout import ClusterLayout
from deployment.testbed.cluster.commands import CommandFailed, succeeds
from deployment.testbed.cluster.images import release
from deployment.testbed.cluster.node import CNI_PROGRAMS, OWN_FOLDERS
from deployment.testbed.processes import ServerFailed

PACKAGES = "deployment/install-system-packages.sh deployment/system-packages-cluster.txt"
PROGRAMS = (
    "containerd", "ctr", "debootstrap", "etcd", "gcc", "ip", "nft", "nsenter", "openssl", "runc", "socat", "sysctl",
    "unshare",
)  # fmt: skip
HIDDEN = ("/run", "/var/run", *OWN_FOLDERS)
"""Folders that a node replaces by its own. The cluster's files cannot be in them."""


class MachineUnfit(ServerFailed):
    """The machine lacks a feature that a cluster needs, or something else has the cluster's names. Nothing was made."""


def check(layout: ClusterLayout, *, ours: bool) -> None:
    """Raise `MachineUnfit` with all problems. `ours`: the state folder has a record of this cluster, so existing things
    with its names belong to it.
    """
    problems = [*_missing()] or [*_failing(layout), *_taken(layout, ours=ours)]
    if problems:
        raise MachineUnfit(
            "\n".join(["No cluster can run here:", *(f"  - {problem}" for problem in problems)])
        )


def _missing() -> Iterator[str]:
    if os.geteuid() != 0:
        yield "Nodes need their own namespaces, mounts and cgroups: run this as root."
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    missing += [
        str(CNI_PROGRAMS / name) for name in ("bridge", "host-local") if not (CNI_PROGRAMS / name).exists()
    ]
    if missing:
        yield f"Programs are missing: {', '.join(missing)}. Install them: {PACKAGES}"
    found = cgroups.hierarchies()
    if lacking := sorted(set(cgroups.NEEDED) - found.controllers):
        yield (
            f"Cgroup controllers are missing below {cgroups.ROOT}: {', '.join(lacking)}. "
            "A container must be started with the machine's cgroups, writable."
        )
    elif not os.access(found.members, os.W_OK):
        yield f"{found.members} is read-only. A container must be started with the machine's cgroups, writable."
    try:
        release()
    except CommandFailed as error:
        yield str(error)


def _failing(layout: ClusterLayout) -> Iterator[str]:
    """Yield problems of features, tried inside namespaces that end with the trial."""
    if any(layout.state.is_relative_to(folder) for folder in HIDDEN):
        yield f"Every node replaces the folder of the state folder {layout.state}. Choose another (CLUSTER_STATE)."
        return
    alone = ["unshare", "--net", "--mount", "--propagation", "slave", "--"]
    if not succeeds([*alone, "true"]):
        yield "Network and mount namespaces cannot be created: the machine or the container forbids it."
        return
    links = "ip link add name br0 type bridge && ip link add name v0 master br0 type veth peer name v1"
    if not succeeds([*alone, "sh", "-c", links]):
        yield "The kernel cannot create bridges or virtual cables (modules bridge, veth)."
    if not succeeds(
        [*alone, "nft", "add table ip probe; add chain ip probe c { type nat hook output priority 0; }"]
    ):
        yield "The kernel cannot translate addresses (modules nf_tables, nf_nat)."
    layout.state.mkdir(parents=True, exist_ok=True)
    overlay = """
d=$(mktemp -d -p "$1") && mkdir "$d/l" "$d/u" "$d/w" "$d/m" || exit
mount -t overlay overlay -o "lowerdir=$d/l,upperdir=$d/u,workdir=$d/w" "$d/m" && umount "$d/m"
works=$?
rm -r "$d"
exit $works
"""
    if not succeeds([*alone, "sh", "-c", overlay, "sh", layout.state]):
        yield (
            f"Images cannot be stacked below {layout.state}: overlayfs is missing, or that file system (perhaps an "
            "overlay itself) cannot hold it. Put the state folder on a plain disk (CLUSTER_STATE)."
        )


def _taken(layout: ClusterLayout, *, ours: bool) -> Iterator[str]:
    remedy = "Choose another name (CLUSTER_NAME)"
    links = network.links()
    owner = links.get(layout.bridge)
    # Without an alias it is ours: the previous start ended before it could mark the link.
    if owner is not None and owner != str(layout.state) and not (ours and owner == ""):
        whose = (
            f"of the cluster in {owner}: end that one (CLUSTER_STATE={owner} make cluster-down)"
            if owner
            else ""
        )
        yield f"A link {layout.bridge} exists, {whose or 'which no cluster made'}. {remedy}."
    if not ours:
        cables = [name for name in links if name.startswith(f"{layout.name}-node")]
        if cables:
            yield f"Links {', '.join(cables)} exist. {remedy}."
        if folders := cgroups.existing(layout.name):
            yield f"Cgroups of that name exist: {', '.join(map(str, folders))}. {remedy}."
    if routes := network.overlapping_routes(layout):
        yield (
            f"This machine has routes into {layout.network}.0.0/16: {'; '.join(routes)}. "
            "Choose another network (CLUSTER_NETWORK, such as 10.97)."
        )
