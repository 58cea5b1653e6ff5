"""Command whose only step is interrupted before its body begins: `python -m …stopped_step HOME`."""

import os
import signal
import sys
import time
from pathlib import Path

import dagster as dg

from ml_assets.components.failures import RETRY_TRANSIENT, final_unless_transient
from ml_assets.context.launch import materialize
from ml_assets.context.project import Project
from ml_assets_tests.prepared_home import prepare_home
from resources.settings import Settings

STOPPED = 130
"""Exit code of a command that a person stopped."""


def worked_in(home: Path) -> Path:
    """Return the file that the body of the step makes."""
    return home / "worked"


def main(home: Path) -> int:
    """Materialize the asset; return the exit code of `ml-assets launch`."""
    begun = home / "begun"

    @dg.asset(retry_policy=RETRY_TRANSIENT)
    def interrupted() -> None:
        if not begun.exists():
            begun.touch()
            os.kill(os.getpid(), signal.SIGINT)
            while True:  # until the interrupt arrives
                time.sleep(0.01)
        with final_unless_transient(Settings(home=home)):
            worked_in(home).touch()

    os.environ["DAGSTER_HOME"] = ""  # `prepare_home` sets it
    settings = Settings(home=home)
    prepare_home(settings)
    project = Project(settings)
    project.__dict__["defs"] = dg.Definitions(assets=[interrupted])
    try:
        materialize(project, [interrupted.key])
    except KeyboardInterrupt:
        return STOPPED
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell
    sys.exit(main(Path(sys.argv[1])))
