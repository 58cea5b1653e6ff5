"""Short commands of the system, with readable errors."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from deployment.testbed.processes import ServerFailed


class CommandFailed(ServerFailed):
    """A short command failed. The message has the command and its output."""


def run(command: Sequence[str | Path], *, stdin: str = "", seconds: float = 60.0) -> str:
    """Return the command's standard output. Raise `CommandFailed`."""
    shown = " ".join(str(word) for word in command)
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=seconds, check=False
        )
    except FileNotFoundError as error:
        raise CommandFailed(f"{command[0]} is not installed ({shown}).") from error
    except subprocess.TimeoutExpired as error:
        raise CommandFailed(f"Still running after {seconds:.0f} s: {shown}") from error
    if done.returncode:
        raise CommandFailed(f"{shown} ended with {done.returncode}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def succeeds(command: Sequence[str | Path], *, stdin: str = "", seconds: float = 60.0) -> bool:
    """True if the command ends with exit status 0."""
    try:
        run(command, stdin=stdin, seconds=seconds)
    except CommandFailed:
        return False
    return True
