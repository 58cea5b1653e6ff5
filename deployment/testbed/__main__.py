"""Run `python -m deployment.testbed servers …` or `… cluster …`. Print errors as sentences."""

import importlib
import sys

from deployment.testbed.build import BuildFailed
from deployment.testbed.processes import ServerFailed

PARTS = ("servers", "cluster")


def main(words: list[str]) -> int:
    """Run the command; return its exit status."""
    if not words or words[0] not in PARTS:
        sys.stderr.write(f"Name a part: python -m deployment.testbed {'|'.join(PARTS)} …\n")
        return 2
    command = importlib.import_module(f"deployment.testbed.{words[0]}.command")
    try:
        return command.main(words[1:])
    except (BuildFailed, ServerFailed) as error:
        sys.stderr.write(f"{error}\n")
        return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
