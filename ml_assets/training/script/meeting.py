"""Meeting of a script's ranks, so that all of them can save together: independent of any process group.

A script may have no process group, an unusual one, or have destroyed it. Its ranks exchange messages in a store. On one
machine the agent opens the store; on several, it is the store in which the nodes meet. Not here: checkpoints (api),
the nodes' store (node.nodes).
"""

# pyright: reportPrivateImportUsage=false
# (torch exports its stores without declaring them)

import json
import os
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from resources.job.errors import BadConfiguration, TrainingFailed
from resources.job.job import ExitCode

if TYPE_CHECKING:
    from torch.distributed import Store, TCPStore

MEETING = "TRAINING_JOB_MEETING"
"""Environment variable of a script: `host:port` of the store."""
_CALL = timedelta(seconds=60)
_LOOK = timedelta(seconds=0.5)
"""Interval between two looks at a rank that another waits for: it may have ended."""

T = TypeVar("T")


def open_meeting(nodes: tuple[str, int] | None) -> "TCPStore | None":
    """Publish a store to the ranks of this machine: the store at `nodes` (host, port), where the machines of a job
    meet, or a new store, which lasts as long as the returned object. The agent calls this."""
    from torch.distributed import TCPStore

    if nodes is not None:
        host, port = nodes
        _place().write_text(f"{host}:{port}")
        return None
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=_CALL, wait_for_workers=False)
    _place().write_text(f"127.0.0.1:{store.port}")
    return store


def find_meeting() -> None:
    """Publish the store's address to the script. Called in a rank that an agent started."""
    os.environ[MEETING] = _place().read_text()


def _place() -> Path:
    return Path(tempfile.gettempdir()) / "meeting"


class Meeting:
    """Ranks of a script, or one round of their agreement. All ranks take part in the same order."""

    def __init__(self, store: "Store | None", rank: int, world_size: int, name: str = "script") -> None:
        """`store` is None for a single rank."""
        self._store = store
        self._rank = rank
        self._name = name
        self._ranks = range(world_size)
        self._rounds = 0

    @classmethod
    def join(cls, rank: int, world_size: int) -> Self | None:
        """Join all ranks of this job. Return None if torchrun started several ranks by hand without a common store."""
        if world_size == 1:
            return cls(None, rank, 1)
        address = os.environ.get(MEETING)
        if address is None and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        if address is None:
            return None
        from torch.distributed import TCPStore

        host, _, port = address.rpartition(":")
        store = TCPStore(host, int(port), is_master=False, timeout=_CALL, wait_for_workers=False)
        return cls(store, rank, world_size)

    def round(self) -> "Meeting":
        """Begin the next joint operation of all ranks."""
        self._rounds += 1
        return Meeting(self._store, self._rank, len(self._ranks), f"round-{self._rounds}")

    def tell(self, about: str, value: object) -> None:
        """Publish a value that other ranks may read."""
        if self._store is not None:
            self._store.set(f"{self._name}/{about}/{self._rank}", json.dumps(value))

    def hear(self, about: str, rank: int) -> Any:
        """Wait for the value that `rank` published under `about`. Raises `PeerFailed` if that rank failed in this
        round, and `BadConfiguration` if its script has ended.
        """
        from torch.distributed import DistStoreError

        from ml_assets.training.process.group import PeerFailed

        assert self._store is not None
        key, failed, left = f"{self._name}/{about}/{rank}", f"{self._name}/failed/{rank}", f"left/{rank}"
        while True:
            has_left = self._store.check([left])  # first: a rank publishes values before it leaves
            try:
                self._store.wait([key], _LOOK)
            except DistStoreError:
                if self._store.check([failed]):
                    raise PeerFailed(int(self._store.get(failed))) from None
                if has_left:
                    raise BadConfiguration(
                        f"rank {rank} has ended, but rank {self._rank} waits for its part of a checkpoint: call "
                        "checkpoint(step, all_ranks=True) equally often on each rank"
                    ) from None
            else:
                return json.loads(self._store.get(key))

    def gather(self, about: str, value: T) -> list[T]:
        """Return `value` of every rank, ordered by rank."""
        self.tell(about, value)
        return [value if rank == self._rank else self.hear(about, rank) for rank in self._ranks]

    def all_succeed(self, about: str, action: Callable[[], T]) -> T:
        """Run `action` on every rank; return after all have. If it fails on one rank, the others raise `PeerFailed`."""
        result = action()
        self.gather(about, True)
        return result

    def fail(self, error: BaseException) -> None:
        """Publish this rank's failure, so that others do not wait for it in this round."""
        code = error.exit_code if isinstance(error, TrainingFailed) else None
        if self._store is not None:
            self._store.set(f"{self._name}/failed/{self._rank}", str(int(code or ExitCode.PEER_LOST)))

    def leave(self) -> None:
        """Publish that this rank's script has ended."""
        if self._store is not None:
            self._store.set(f"left/{self._rank}", "")
