"""Advice for whoever starts Dagster's own commands (`dg dev`, `dg launch`) without this project's Dagster home.

`ml-assets` writes `dagster.yaml` there and points Dagster to it. Without it Dagster keeps its history in a folder of
the checkout that it removes afterwards, or in its default storage.
"""

import logging
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

_RUNS_ASSETS = ("dev", "launch")
"""Subcommands of `dg` that keep history. The others, such as `dg list`, need no home."""


def advice(environment: Mapping[str, str], arguments: Sequence[str], home: Path) -> str | None:
    """Return what to do so that history is kept in `home`; None where there is nothing to say.

    `arguments` are those of the process: program, subcommand and so on.
    """
    given = environment.get("DAGSTER_HOME")
    if not given and (len(arguments) < 2 or arguments[1] not in _RUNS_ASSETS):
        return None
    if given and (Path(given) / "dagster.yaml").is_file():
        return None
    lacks = f"DAGSTER_HOME={given} has no dagster.yaml" if given else "DAGSTER_HOME is not set"
    return (
        f"{lacks}, so that Dagster does not keep its history as this project does: run ml-assets doctor once, then "
        f"export DAGSTER_HOME={home}"
    )


@cache
def say_once(text: str) -> None:
    """Log a warning, once in this process: one `dg launch` loads the definitions four times."""
    logging.getLogger("ml_assets").warning(text)
