"""Leftovers of a cluster on this machine, checked after `down`."""

from contextlib import suppress
from pathlib import Path

from deployment.testbed.cluster import cgroups, network
from deployment.testbed.cluster.cluster_layout import ClusterLayout


def leftovers(layout: ClusterLayout) -> list[str]:
    """Return processes, mounts of any process, links, cgroups and files that carry the cluster's names. An empty list
    is right.
    """
    mark = str(layout.state).encode()
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            if mark in (process / "mountinfo").read_bytes():
                found.append(f"a mount seen by process {process.name}")
    found += [f"process {pid}" for pid in cgroups.members(layout.name)]
    found += [f"cgroup {folder}" for folder in cgroups.existing(layout.name)]
    found += [
        f"link {name}"
        for name, owner in network.links().items()
        if owner == str(layout.state) or name.startswith(f"{layout.name}-node")
    ]
    return [*found, *([f"folder {layout.state}"] if layout.state.exists() else [])]
