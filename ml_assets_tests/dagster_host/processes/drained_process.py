"""Process of a run as Dagster launches it, which sends itself SIGTERM: `python -m …drained_process HOME RUN`."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg
from dagster._core.definitions.reconstruct import reconstructable
from dagster._core.execution.api import execute_run_iterator
from dagster._utils.interrupts import capture_interrupts

from ml_assets.components.failures import comes_back, executed, final_unless_transient
from ml_assets.dagster_host.dead_runs import in_process_within
from resources.settings import Settings

CANCELED = "canceled"
"""Tag of a run that somebody cancels before its process gets the signal."""
TELL = "the run comes back:"


@dg.op
def wait(context: dg.OpExecutionContext) -> None:
    """Wait for the signal as a launcher does, and say who it thinks sent it."""
    with final_unless_transient(Settings()):
        if CANCELED in context.run.tags:
            context.instance.report_run_canceling(context.run)
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            while True:
                time.sleep(0.01)
        except BaseException as error:
            context.log.info(f"{TELL} {comes_back(error)}")
            raise


@contextmanager
def _block(instance: dg.DagsterInstance, run_id: str) -> Iterator[None]:
    with executed(instance, run_id):
        yield


@dg.job(executor_def=in_process_within(_block))
def waiting() -> None:
    """A job whose only step waits."""
    wait()


if __name__ == "__main__":
    with capture_interrupts(), dg.DagsterInstance.from_config(sys.argv[1]) as of_process:
        run = of_process.get_run_by_id(sys.argv[2])
        assert run is not None
        for _ in execute_run_iterator(reconstructable(waiting), run, of_process):
            pass
