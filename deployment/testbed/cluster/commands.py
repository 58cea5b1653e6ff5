"""Running short commands of the system with errors one can read."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from deployment.testbed.processes import ServerFailed


class CommandFailed(ServerFailed):
    """A short command did not do its work; the message has the command and what it said."""


def run(command: Sequence[str | Path], *, stdin: str = "", seconds: float = 60.0) -> str:
    """The command's standard output. Raises CommandFailed."""
    shown = " ".join(str(word) for word in command)
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=seconds, check=False
        )
    except FileNotFoundError as error:
        raise CommandFailed(f"{command[0]} is not installed ({shown}).") from error
    except subprocess.TimeoutExpired as error:
        raise CommandFailed(f"No end after {seconds:.0f} s: {shown}") from error
    if done.returncode:
        raise CommandFailed(f"{shown} ended with {done.returncode}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def succeeds(command: Sequence[str | Path], *, stdin: str = "", seconds: float = 60.0) -> bool:
    """Does the command end with 0?"""
    try:
        run(command, stdin=stdin, seconds=seconds)
    except CommandFailed:
        return False
    return True
