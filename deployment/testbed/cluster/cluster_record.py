"""Record of a cluster, with which another process can find it, change it and end it.

Here: `<state>/cluster.json` and the lock around changes.
"""

import dataclasses
import json
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from deployment.testbed.build import cache_folder
from deployment.testbed.cluster.cluster_layout import ClusterLayout
from deployment.testbed.cluster.control import EtcdPorts, Programs
from deployment.testbed.processes import Process, ServerFailed, free_port
from deployment.testbed.testbed_files import locked, write_record


class NoCluster(ServerFailed):
    """The state folder has no cluster."""


@dataclass
class ClusterRecord:
    """Facts of a cluster, written before each thing that they name is made, so that a killed `up` can be cleaned up."""

    layout: ClusterLayout
    ports: EtcdPorts
    programs: Programs
    base_image: str
    pause_image: str
    archives: dict[str, Path]
    processes: dict[str, Process] = field(default_factory=dict)
    forwards: dict[int, int] = field(default_factory=dict)
    """Port of the bridge address → port of loopback."""

    @property
    def file(self) -> Path:
        return _file(self.layout.state)

    def save(self) -> None:
        """Write the record atomically."""
        self.layout.state.mkdir(parents=True, exist_ok=True)
        write_record(self.file, json.dumps(dataclasses.asdict(self), indent=1, default=str))


def exists(state: Path) -> bool:
    return _file(state).exists()


def load(state: Path) -> ClusterRecord:
    """Read the record. Raise `NoCluster`."""
    try:
        raw = json.loads(_file(state).read_text())
    except FileNotFoundError as error:
        raise NoCluster(
            f"There is no cluster in {state}. Start one: make cluster-up CLUSTER_STATE={state}"
        ) from error
    return ClusterRecord(
        layout=ClusterLayout(**raw["layout"] | {"state": Path(raw["layout"]["state"])}),
        ports=EtcdPorts(**raw["ports"]),
        programs=Programs(**{name: Path(folder) for name, folder in raw["programs"].items()}),
        base_image=raw["base_image"],
        pause_image=raw["pause_image"],
        archives={image: Path(archive) for image, archive in raw["archives"].items()},
        processes={name: Process(**process) for name, process in raw["processes"].items()},
        forwards={int(port): int(target) for port, target in raw["forwards"].items()},
    )


def new_ports() -> EtcdPorts:
    return EtcdPorts(client=free_port(), peer=free_port())


def changing(name: str) -> AbstractContextManager[None]:
    """Hold a lock for one change of the clusters called `name`; other processes wait. The lock outlives the state
    folder.
    """
    return locked(cache_folder() / f"cluster-{name}.lock")


def _file(state: Path) -> Path:
    return state / "cluster.json"
