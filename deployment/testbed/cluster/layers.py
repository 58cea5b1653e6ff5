"""Unpacked layers of images, given to a node by hard links: gigabytes that are on this disk only once.

Here: giving a node such layers before the import of an archive that has only the layers above them.
"""

import hashlib
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deployment.testbed.cluster.cluster_layout import NodeLayout
from deployment.testbed.cluster.commands import run
from deployment.testbed.cluster.node import ctr, folder_of
from deployment.testbed.processes import Process

SNAPSHOTTER = ("snapshots", "--snapshotter", "overlayfs")


@dataclass(frozen=True)
class Layer:
    """One unpacked layer. Neither this machine nor a node writes to its files again."""

    diff_id: str
    """`sha256:…` of its archive, as in the image's configuration."""
    folder: Path
    """Files that it adds, in the format of overlayfs."""


def link_layers(node: NodeLayout, machine: Process, layers: Sequence[Layer]) -> None:
    """Give a node the lowest layers of an image, from the bottom. Existing layers stay as they are. Raise
    `CommandFailed`.

    The node does not get their archives: a restarted containerd finds the image incomplete.
    """
    lines = run(ctr(node, machine, *SNAPSHOTTER, "list")).splitlines()
    known = {line.split()[0] for line in lines[1:]}
    chain = ""
    for layer in layers:
        below, chain = chain, _chain_id(chain, layer.diff_id)
        if chain not in known:
            _link(node, machine, layer, below, chain)


def _chain_id(below: str, diff_id: str) -> str:
    """Return containerd's name of a layer on top of others: https://github.com/opencontainers/image-spec, "Layer
    ChainID".
    """
    return f"sha256:{hashlib.sha256(f'{below} {diff_id}'.encode()).hexdigest()}" if below else diff_id


def _link(node: NodeLayout, machine: Process, layer: Layer, below: str, chain: str) -> None:
    key = f"link-{time.monotonic_ns()}"
    run(ctr(node, machine, *SNAPSHOTTER, "prepare", key, *([below] if below else [])))
    mount = run(ctr(node, machine, *SNAPSHOTTER, "mounts", "/nowhere", key))
    target = folder_of(node, _written_to(mount))
    same_disk = layer.folder.stat().st_dev == target.stat().st_dev
    run(["cp", "--archive", *(["--link"] if same_disk else []), f"{layer.folder}/.", target], seconds=600)
    run(ctr(node, machine, *SNAPSHOTTER, "commit", chain, key))


def _written_to(mount: str) -> Path:
    """Return the folder of new files in the `mount` command that ctr prints."""
    words = shlex.split(mount)
    options = words[words.index("-o") + 1].split(",")
    upper = [option.removeprefix("upperdir=") for option in options if option.startswith("upperdir=")]
    return Path(upper[0] if upper else words[words.index("-t") + 2])
