"""Layout of a cluster: names, addresses, folders.

Everything outside its state folder carries the cluster's `name`: one bridge, one cgroup tree, one virtual cable per
node. Two clusters with different names and networks can run side by side.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from deployment.testbed.processes import ServerFailed

SERVICES = "10.96.0.0/16"
"""Addresses of services. Only nodes have a route to them, not the machine itself."""
API_SERVICE = "10.96.0.1"
API_PORT = 6443
DOMAIN = "cluster.local"
LONGEST_NAME = 8
"""Longest name of a cluster. The name of a link has at most 15 characters, and `-node9` is added."""


@dataclass(frozen=True)
class ClusterLayout:
    """Names, addresses and folders of one cluster."""

    state: Path
    """Absolute folder of all files."""
    name: str = "mla"
    network: str = "10.88"
    """First two numbers of all addresses: NETWORK.0.0/24 machine and nodes, NETWORK.N.0/24 pods of node N."""
    nodes: int = 2

    def __post_init__(self) -> None:
        if not self.state.is_absolute():
            raise ValueError(f"The state folder must be an absolute path, not {self.state}.")
        if not re.fullmatch(rf"[a-z][a-z0-9]{{0,{LONGEST_NAME - 1}}}", self.name):
            raise ValueError(
                f"A cluster's name has up to {LONGEST_NAME} small letters and digits, not {self.name!r}."
            )
        if not re.fullmatch(r"\d{1,3}\.\d{1,3}", self.network):
            raise ValueError(f"A cluster's network is two numbers such as 10.88, not {self.network!r}.")
        if SERVICES.startswith(f"{self.network}."):
            raise ValueError(
                f"{SERVICES} are the addresses of services: choose another network, such as 10.97."
            )
        if not 1 <= self.nodes <= 9:
            raise ValueError(f"A cluster has 1 to 9 nodes, not {self.nodes}.")

    @property
    def numbers(self) -> range:
        """Return all nodes, numbered from 1."""
        return range(1, self.nodes + 1)

    @property
    def bridge(self) -> str:
        return f"{self.name}0"

    @property
    def address(self) -> str:
        """The machine's own address on the bridge, for the API server, the name service and forwarded ports."""
        return f"{self.network}.0.1"

    @property
    def api(self) -> str:
        return f"https://{self.address}:{API_PORT}"

    @property
    def kubeconfig(self) -> Path:
        return self.state / "kubeconfig"

    @property
    def context(self) -> str:
        return f"ml-assets-{self.name}"

    @property
    def pki(self) -> Path:
        return self.state / "pki"

    def log(self, process: str) -> Path:
        return self.state / "log" / f"{process}.log"

    def node(self, number: int) -> "NodeLayout":
        """Return names and addresses of one node. Raise `ServerFailed` if there is no such node."""
        if number not in self.numbers:
            raise ServerFailed(f"There is no node {number}: nodes are numbered 1 to {self.nodes}.")
        return NodeLayout(self, number)


@dataclass(frozen=True)
class NodeLayout:
    """Names, addresses and folders of one node."""

    cluster: ClusterLayout
    number: int

    @property
    def name(self) -> str:
        return f"node{self.number}"

    @property
    def address(self) -> str:
        return f"{self.cluster.network}.0.{10 + self.number}"

    @property
    def pods(self) -> str:
        return f"{self.cluster.network}.{self.number}.0/24"

    @property
    def cable(self) -> str:
        """Name of the machine's end of the virtual cable. The node's end is its eth0."""
        return f"{self.cluster.name}-{self.name}"

    @property
    def cgroup(self) -> str:
        """Path of the kubelet's root below the mount point of each hierarchy."""
        return f"{self.cluster.name}/{self.name}"

    @property
    def folder(self) -> Path:
        return self.cluster.state / self.name

    def process(self, program: str) -> str:
        """Return the name under which this node's `program` is recorded."""
        return f"{program}-{self.name}"
