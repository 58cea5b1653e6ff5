"""Agent of this node's ranks: torch's elastic agent as a library, so that the exit code of the ranks is kept.

The command line tool `torchrun` ends with 1 for every exit code of its workers; the library returns the code. On
several machines, the nodes of a job also exchange messages outside the process group: each node's progress and exit
code. A node that cannot start its ranks, or whose ranks are gone, has only these messages.

Not here: attempts (the launcher), the work of a rank (training.entry, script.script_rank), the callers (torchrun on one
machine, pod on several), which import this module, and torch with it, once the forkserver has started.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportPrivateImportUsage=false
# (the annotations of torch are partial)

import logging
import time
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from torch.distributed import DistError, DistNetworkError, TCPStore
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from ml_assets.model.training.attempt.attempts import RankOutcome, explaining, forget_codes, report_end
from ml_assets.model.training.process.heartbeat import HangTimeouts, Watch
from ml_assets.model.training.script.meeting import is_listening, open_meeting
from resources.job.job import ExitCode, TrainingJob

if TYPE_CHECKING:  # the program of this process: imported, it would run twice
    from ml_assets.model.training.node.torchrun import Node

_MEET_SECONDS = 600.0
"""Time for another node to appear: its image may still be downloading. Launchers give up earlier."""
_CALL = timedelta(seconds=10)
"""Timeout of one call to the store; no call waits for another node."""
_POLL_SECONDS = 0.1

log = logging.getLogger(__name__)


def begin_rank(folder: str, mirror: str, is_script: bool) -> None:
    """Train the job of `folder` as a rank, or run its script. Imports in the ranks let the agent start sooner."""
    if is_script:
        from ml_assets.model.training.script import script_rank

        script_rank.main(folder, mirror)
    else:
        from ml_assets.model.training import entry

        entry.main(folder, mirror)


def run_ranks(
    job: TrainingJob, ranks: int, folder: Path, mirror: str = "", node: "Node | None" = None
) -> int:
    """Run `ranks` processes of `begin_rank` to their end; return their exit code, 137 for a killed rank.

    `folder` holds the job's file; `mirror` is the address of that folder's durable copy, if there is one. Without
    `node`, these ranks are the whole job and meet on loopback; with it, ranks meet in the store of `Nodes`, which must
    be open until the ranks have ended. On SIGTERM the agent passes the signal on to the ranks, gives them time to save,
    and returns `PREEMPTED`. It kills a rank that hangs for longer than the job's timeouts.
    """
    _format_torch_logs_plainly()
    config = LaunchConfig(
        min_nodes=1 if node is None else node.count,
        max_nodes=1 if node is None else node.count,
        nproc_per_node=ranks,
        run_id=job.fingerprint[:12],
        # Static: the store lives in the agent of node 0, not in a rank, and no host is elected.
        rdzv_backend="c10d" if node is None else "static",
        rdzv_endpoint="127.0.0.1:0" if node is None else f"{node.address}:{node.port}",
        rdzv_configs={} if node is None else {"rank": node.rank},
        local_addr="127.0.0.1" if node is None else None,
        max_restarts=0,  # the launcher decides about retries: it knows which codes are final
        monitor_interval=0.1,
        start_method="forkserver",
    )
    watch = Watch(ranks, HangTimeouts.of(job), is_alone=node is None or node.count == 1)
    first = 0 if node is None else node.rank * ranks
    forget_codes(range(ranks))
    meeting = open_meeting(node and (node.address, node.port, node.rank)) if job.script else nullcontext()
    try:
        with meeting, watch.watching():
            elastic_launch(config, begin_rank)(str(folder), mirror, bool(job.script))
    except ChildFailedError as error:
        found = sorted(error.failures.items(), key=lambda one: one[1].timestamp)
        end = explaining(range(ranks), {rank - first: _code_of(one.exitcode) for rank, one in found})
    except Exception as error:
        if not came_from(error, SignalException):
            raise
        # The ranks received the signal, and time to save.
        end = RankOutcome(rank=0, code=ExitCode.PREEMPTED)
    else:
        return ExitCode.DONE
    hung = {first + local: why for local, why in watch.ended.items()}
    killed = [first + local for local in watch.silent()]
    report_end(replace(end, rank=first + end.rank), hung, killed)
    return end.code


def came_from(error: BaseException, kind: type[BaseException]) -> bool:
    """Return True if `error` is a `kind`, or was raised while one was handled.

    torch's agent runs inside a timer that fails with `UnboundLocalError` if the signal arrives in its first line.
    """
    found: BaseException | None = error
    while found is not None and not isinstance(found, kind):
        found = found.__context__
    return found is not None


def _code_of(exit_code: int) -> int:
    """Map an exit code as a shell does: 137 for SIGKILL."""
    return exit_code if exit_code >= 0 else 128 - exit_code


def _format_torch_logs_plainly() -> None:
    """Replace torch's log formatter. It imports torch's compiler to format its first line, which takes seconds just
    when a rank died."""
    plain = logging.Formatter("%(levelname)s %(name)s: %(message)s")
    for name in logging.root.manager.loggerDict:
        if name.partition(".")[0] == "torch":
            for handler in logging.getLogger(name).handlers:
                handler.setFormatter(plain)


class Nodes:
    """Nodes of one attempt. They share a store that node 0 holds while this object lives. `node` is this one."""

    def __init__(self, node: "Node") -> None:
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
