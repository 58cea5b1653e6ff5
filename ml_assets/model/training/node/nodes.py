"""Messages between the nodes of a job outside the process group: each node's progress and exit code.

Ranks agree through their process group. A node that cannot start its ranks, or whose ranks are gone, has only these
messages. Not here: the rendezvous of ranks for training (agent).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportPrivateImportUsage=false
# (the annotations of torch are partial)

import logging
import time
from datetime import timedelta

from torch.distributed import DistError, DistNetworkError, TCPStore

from ml_assets.model.training.node.agent import Node
from ml_assets.model.training.script.meeting import is_listening
from resources.job.job import ExitCode

_MEET_SECONDS = 600.0
"""Time for another node to appear: its image may still be downloading. Launchers give up earlier."""
_CALL = timedelta(seconds=10)
"""Timeout of one call to the store; no call waits for another node."""
_POLL_SECONDS = 0.1

log = logging.getLogger(__name__)


class Nodes:
    """Nodes of one attempt. They share a store that node 0 holds while this object lives. `node` is this one."""

    def __init__(self, node: Node) -> None:
        """Wait for node 0, unless this is node 0. Raises torch's `DistNetworkError` if node 0 does not answer."""
        self.node = node
        deadline = time.monotonic() + _MEET_SECONDS
        while node.rank and not is_listening(node.address, node.port):
            if time.monotonic() > deadline:
                raise DistNetworkError(f"node 0 does not answer at {node.address}:{node.port}")
            time.sleep(_POLL_SECONDS)
        self._store = TCPStore(
            node.address,
            node.port,
            is_master=node.rank == 0,
            timeout=_CALL,
            wait_for_workers=False,
            multi_tenant=True,  # the agent of this process opens the same store
        )

    def agree(self, about: str, code: int, seconds: float | None = None) -> int:
        """Exchange exit codes with all nodes under the key `about`; return the code that explains most.

        Order: a final failure, a failure of its own, a preemption, a lost peer, `DONE`. Waits at most `seconds` for the
        other nodes; a node that is gone sends no code.
        """
        deadline = time.monotonic() + (_MEET_SECONDS if seconds is None else seconds)
        key = f"nodes/{about}"
        codes = [code]
        try:
            self._store.set(f"{key}/{self.node.rank}", str(int(code)))
            missing = set(range(self.node.count)) - {self.node.rank}
            while missing and time.monotonic() < deadline:
                said = {rank for rank in missing if self._store.check([f"{key}/{rank}"])}
                codes += [int(self._store.get(f"{key}/{rank}")) for rank in said]
                missing -= said
                time.sleep(_POLL_SECONDS)
            self._leave(about, deadline)
        except DistError as error:
            log.warning("node 0 is gone, and with it the store of the rendezvous: %s", error)
        return max(codes, key=_weight)

    def _leave(self, about: str, deadline: float) -> None:
        """Keep node 0 until all other nodes have left, since it holds the store."""
        self._store.add(f"left/{about}", 1)
        while self.node.rank == 0 and time.monotonic() < deadline:
            if self._store.add(f"left/{about}", 0) >= self.node.count:
                break
            time.sleep(_POLL_SECONDS)


def _weight(code: int) -> int:
    """Return how much a code explains: a first failure outweighs its consequences."""
    follows = {ExitCode.DONE: 0, ExitCode.PEER_LOST: 1, ExitCode.PREEMPTED: 2}
    return 3 if (known := ExitCode.of(code)) is None else follows.get(known, 4)
