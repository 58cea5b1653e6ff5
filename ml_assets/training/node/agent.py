"""Running the ranks of this node: torch's elastic agent as a library, with the exit code of the ranks kept.

The command line tool `torchrun` ends with 1 whatever its workers' code was; called as a library the agent
hands the code over. Ranks are forked from one process that has torch imported, while this one imports it
too: half the start. They get the decoded job. Not here: attempts (the launcher), what a rank does (entry,
script.script_rank), who calls this (torchrun on one machine, pod on several).
"""

import hashlib
import logging
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
from dataclasses import dataclass, replace
from multiprocessing import forkserver
from multiprocessing.util import Finalize
from pathlib import Path
from types import FrameType
from typing import NoReturn

from ml_assets.training.process.heartbeat import HangTimeouts, Watch
from resources.job.job import ExitCode, TrainingJob

_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    # The order of a set of names: a model that sums over one gave other bits after each resume.
    "PYTHONHASHSEED": "0",
    # From 2.13 on a worker that joins later hangs otherwise: nobody writes the address for the new round.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    # Deterministic matrix products on CUDA need a fixed workspace.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}
# The last two are imported by the first optimizer and by asking for determinism: 3 s that ranks would all
# spend.
_IMPORTED_ONCE = ["ml_assets.training.entry", "torch._dynamo", "torch._inductor.config"]

_temporary: Path | None = None
"""This process's own folder for temporary files."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """This machine among those that run a job together."""

    rank: int
    """0 … `count` - 1; ranks of the job are numbered by node."""
    count: int
    address: str
    """Name or IP address at which node 0 listens."""
    port: int


def start_importing() -> None:
    """Begin to import what ranks need, in the process they will be forked from; SIGTERM ends this one with
    `PREEMPTED` from now on, until the agent hands it on to the ranks."""
    signal.signal(signal.SIGTERM, _end_early)
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    multiprocessing.set_forkserver_preload(_IMPORTED_ONCE)
    forkserver.ensure_running()


def use_temporary_folder(job_folder: Path) -> None:
    """From now on all temporary files of this process and its children lie in a folder of the job's own, which
    goes when this process ends.

    torch and multiprocessing leave some behind wherever a rank or an agent is killed: the next attempt
    removes them. The folder is in the system's place for such, since sockets need a short path.
    """
    digest = hashlib.sha256(os.fsencode(job_folder.resolve())).hexdigest()
    global _temporary
    _temporary = Path(tempfile.gettempdir()) / f"train-{digest[:8]}"
    _remove_temporary_files()
    _temporary.mkdir(mode=0o700)
    os.environ["TMPDIR"] = tempfile.tempdir = str(_temporary)
    # After multiprocessing, which removes its own folder in there with priority -100 and insists on finding it.
    Finalize(None, _remove_temporary_files, exitpriority=-200)


def _remove_temporary_files() -> None:
    if _temporary is not None:
        shutil.rmtree(_temporary, ignore_errors=True)


def end(code: int) -> NoReturn:
    """End this process. To take apart what torch imported would take a second, just when another attempt waits."""
    _remove_temporary_files()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def begin_rank(job: TrainingJob, folder: str, mirror: str) -> None:
    """Train `job` as a rank, or run its script. Only ranks import these modules: an agent starts sooner without."""
    if job.script:
        from ml_assets.training.script import script_rank

        script_rank.main(folder, mirror)
    else:
        from ml_assets.training import entry

        entry.main(job, folder, mirror)


def run_ranks(job: TrainingJob, ranks: int, folder: Path, mirror: str = "", node: Node | None = None) -> int:
    """Run `ranks` processes of `begin_rank` to their end; their exit code, 137 for one that was killed.

    The job's file lies in `folder`; `mirror` is the address of that folder's durable copy, where it has one. Without
    `node` the ranks are the whole job and meet on loopback. SIGTERM is passed on to them: they have time to save, and
    the code is `PREEMPTED`. Kills a rank that hangs for longer than the job's timeouts.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from ml_assets.training.attempt.outcome import RankOutcome, explaining, forget_codes
    from ml_assets.training.attempt.recovery import report_end
    from ml_assets.training.script.meeting import open_meeting

    _format_torch_logs_plainly()
    config = LaunchConfig(
        min_nodes=1 if node is None else node.count,
        max_nodes=1 if node is None else node.count,
        nproc_per_node=ranks,
        run_id=job.fingerprint[:12],
        # Static: the store lives in the agent of node 0, not in a rank, and nobody elects a host.
        rdzv_backend="c10d" if node is None else "static",
        rdzv_endpoint="127.0.0.1:0" if node is None else f"{node.address}:{node.port}",
        rdzv_configs={} if node is None else {"rank": node.rank},
        local_addr="127.0.0.1" if node is None else None,
        max_restarts=0,  # the launcher decides about attempts: it knows which codes are final
        monitor_interval=0.1,
        start_method="forkserver",
    )
    watch = Watch(ranks, HangTimeouts.of(job))
    first = 0 if node is None else node.rank * ranks
    forget_codes(range(ranks))
    _store = open_meeting(
        (node.address, node.port) if node else None
    )  # for scripts; it ends with the reference
    try:
        with watch.watching():
            elastic_launch(config, begin_rank)(job, str(folder), mirror)
    except ChildFailedError as error:
        found = sorted(error.failures.items(), key=lambda one: one[1].timestamp)
        end = explaining(range(ranks), {rank - first: _code_of(one.exitcode) for rank, one in found})
    except SignalException:  # the ranks got it, and time to save
        end = RankOutcome(rank=0, code=ExitCode.PREEMPTED)
    else:
        return ExitCode.DONE
    hung = {first + local: why for local, why in watch.ended.items()}
    killed = [first + local for local in watch.silent()]
    report_end(replace(end, rank=first + end.rank), hung, killed)
    return end.code


def _code_of(exit_code: int) -> int:
    """As a shell says it: 137 for SIGKILL."""
    return exit_code if exit_code >= 0 else 128 - exit_code


def _format_torch_logs_plainly() -> None:
    """Torch's own formatter imports its compiler to format a first line: seconds, just when a rank died."""
    plain = logging.Formatter("%(levelname)s %(name)s: %(message)s")
    for name in logging.root.manager.loggerDict:
        if name.partition(".")[0] == "torch":
            for handler in logging.getLogger(name).handlers:
                handler.setFormatter(plain)


def _end_early(_signal: int, _frame: FrameType | None) -> None:
    """Before the agent takes the signal over there is nothing to save.

    Not `sys.exit`: raised while an import runs a finalizer it would be swallowed, and the signal with it.
    """
    _remove_temporary_files()
    os._exit(ExitCode.PREEMPTED)
