"""Child processes that a test starts, waits for, or expects to die.

Not here: the work they do (`pipeline_commands`, `publishers`), the point where they die (`kill_points`).
"""

import multiprocessing
import os
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path


def forkserver(*modules: str) -> ForkServerContext:
    """Return a context whose children come from a server that has imported `modules` and run nothing.

    Such a child starts in milliseconds and inherits no threads.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(modules))
    return context


@dataclass(frozen=True)
class Child:
    """One process and the file of its output."""

    process: ForkServerProcess
    output: Path

    def said(self) -> str:
        """Return the end of the output."""
        return self.output.read_text(errors="replace")[-4000:] if self.output.exists() else ""

    def end(self, seconds: float) -> int:
        """Wait for the process and return its exit code. Fail the test if it still runs after `seconds`."""
        self.process.join(seconds)
        code = self.process.exitcode
        self.process.kill()
        self.process.join()
        assert code is not None, f"no end after {seconds:.0f} s:\n{self.said()}"
        return code


def start(context: ForkServerContext, output: Path, work: Callable[..., None], *arguments: object) -> Child:
    """Begin `work(*arguments)`, a function of a module, in a child whose output is appended to a file."""
    process = context.Process(target=_work, args=(output, work, *arguments))
    process.start()
    return Child(process, output)


def finish(*children: Child, seconds: float) -> None:
    """Wait for children that have to succeed."""
    for child in children:
        child.process.join(seconds)
    ended = [child.process.exitcode for child in children]
    for child in children:
        child.process.kill()
    assert ended == [0] * len(children), "\n".join(child.said() for child in children)


def _work(output: Path, work: Callable[..., None], *arguments: object) -> None:
    terminal = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(terminal, 1)
    os.dup2(terminal, 2)
    work(*arguments)
