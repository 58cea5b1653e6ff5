"""Agent of this node's ranks: torch's elastic agent as a library, so that the exit code of the ranks is kept.

The command line tool `torchrun` ends with 1 for every exit code of its workers; the library returns the code. A
forkserver imports torch once and forks the ranks, while this process imports torch at the same time: that halves the
start. Ranks receive the decoded job. Not here: attempts (the launcher), the work of a rank (training.entry,
script.script_rank), the callers (torchrun on one machine, pod on several).
"""

import hashlib
import logging
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass, replace
from multiprocessing import forkserver
from multiprocessing.util import Finalize
from pathlib import Path
from types import FrameType
from typing import NoReturn

from ml_assets.model.training.process.heartbeat import HangTimeouts, Watch
from resources.job.job import ExitCode, TrainingJob

_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    # Fixes the iteration order of sets: a model that sums over a set gave other bits after each resume.
    "PYTHONHASHSEED": "0",
    # From torch 2.13 on, a worker that joins later hangs otherwise: no process publishes the address of the new round.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    # Deterministic matrix products on CUDA need a fixed workspace.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}
# The first optimizer imports the last two, and so does a request for determinism: 3 s that each rank would spend.
_IMPORTED_ONCE = ["ml_assets.model.training.entry", "torch._dynamo", "torch._inductor.config"]

_temporary: Path | None = None
"""Temporary folder of this process."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """One machine among those that run a job together."""

    rank: int
    """0 … `count` - 1. The job's ranks are numbered node by node."""
    count: int
    address: str
    """Name or IP address at which node 0 listens."""
    port: int


def start_importing() -> None:
    """Start the forkserver and its imports in the background. From now on SIGTERM ends this process with `PREEMPTED`,
    until the agent passes it on to the ranks."""
    signal.signal(signal.SIGTERM, _end_early)
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    multiprocessing.set_forkserver_preload(_IMPORTED_ONCE)
    forkserver.ensure_running()


def use_temporary_folder(job_folder: Path) -> None:
    """Put all temporary files of this process and its children into the job's own folder, and delete it at the end.

    torch and multiprocessing leave files behind if a rank or an agent is killed; the next attempt removes them. The
    folder is below the system's temporary folder, since sockets need a short path.
    """
    digest = hashlib.sha256(os.fsencode(job_folder.resolve())).hexdigest()
    global _temporary
    _temporary = Path(tempfile.gettempdir()) / f"train-{digest[:8]}"
    _remove_temporary_files()
    _temporary.mkdir(mode=0o700)
    os.environ["TMPDIR"] = tempfile.tempdir = str(_temporary)
    # Runs after multiprocessing's cleanup (priority -100), which fails if its own folder in there is gone.
    Finalize(None, _remove_temporary_files, exitpriority=-200)


def _remove_temporary_files() -> None:
    if _temporary is not None:
        shutil.rmtree(_temporary, ignore_errors=True)


def end(code: int) -> NoReturn:
    """End this process without cleanup. Unloading torch takes a second, in which another attempt would wait."""
    _remove_temporary_files()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def begin_rank(job: TrainingJob, folder: str, mirror: str) -> None:
    """Train `job` as a rank, or run its script. Imports here, in the ranks, let the agent start sooner."""
    if job.script:
        from ml_assets.model.training.script import script_rank

        script_rank.main(job, folder, mirror)
    else:
        from ml_assets.model.training import entry

        entry.main(job, folder, mirror)


def run_ranks(job: TrainingJob, ranks: int, folder: Path, mirror: str = "", node: Node | None = None) -> int:
    """Run `ranks` processes of `begin_rank` to their end; return their exit code, 137 for a killed rank.

    `folder` holds the job's file; `mirror` is the address of that folder's durable copy, if there is one. Without
    `node`, these ranks are the whole job and meet on loopback; with it, ranks meet in the store of `node.nodes`, which
    must be open until the ranks have ended. On SIGTERM the agent passes the signal on to the ranks, gives them time to
    save, and returns `PREEMPTED`. It kills a rank that hangs for longer than the job's timeouts.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from ml_assets.model.training.attempt.attempts import RankOutcome, explaining, forget_codes, report_end
    from ml_assets.model.training.script.meeting import open_meeting

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
            elastic_launch(config, begin_rank)(job, str(folder), mirror)
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


def _end_early(_signal: int, _frame: FrameType | None) -> None:
    """End at once: before the agent handles signals, there is nothing to save.

    Not `sys.exit`: Python swallows its exception inside a finalizer that runs during an import, and the signal is lost.
    """
    _remove_temporary_files()
    os._exit(ExitCode.PREEMPTED)
