"""Refusals of Dagster's own commands (`dg`, `dagster`) as they load the definitions: one line each, with the remedy.

Dagster asks the definitions for nothing before it opens its storage or cuts assets out of a job; this is the first
place that can answer in the project's words. `ml-assets` prepares its home and selects whole models by itself.
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import dagster as dg

_RUNS_ASSETS = ("dev", "launch", "asset", "job")
"""Subcommands of `dg` and `dagster` that keep history. The others, such as `dg list`, need no home."""
_SELECTIONS = {"launch": "assets", "materialize": "select"}
"""Option with the assets to make: of `dg launch`, and of `dagster asset materialize`."""


class CommandRefused(click.ClickException):
    """A command of Dagster's cannot do what was asked; the message is a sentence with the remedy."""


def require_home(environment: Mapping[str, str], arguments: Sequence[str], home: Path) -> None:
    """Refuse a command that would keep its history elsewhere than in a prepared Dagster home.

    `arguments` are those of the process: program, subcommand and so on. Without DAGSTER_HOME Dagster keeps history in a
    folder of the checkout that it removes afterwards; in a home without `dagster.yaml`, in storage that `ml-assets`
    does not read. Raises `CommandRefused`.
    """
    # `dg dev` loads nothing itself: its code servers do, and get its storage by --instance-ref.
    match list(arguments[1:3]):
        case ["api", "grpc"]:
            keeps_history = "--instance-ref" in arguments
        case [command, *_]:
            keeps_history = command in _RUNS_ASSETS
        case _:
            keeps_history = False
    given = environment.get("DAGSTER_HOME")
    if not keeps_history or (given and (Path(given) / "dagster.yaml").is_file()):
        return
    lacks = (
        f"DAGSTER_HOME={given} has no dagster.yaml, so Dagster would not keep its history as this project does"
        if given
        else "DAGSTER_HOME is not set, so Dagster would keep its history in a folder that it removes"
    )
    first = "" if (home / "dagster.yaml").is_file() else "run ml-assets doctor once, then "
    raise CommandRefused(f"{lacks}: {first}export DAGSTER_HOME={home}")


def require_whole_models(defs: dg.Definitions, arguments: Sequence[str]) -> None:
    """Refuse the selection of the command under way where it leaves out assets that are made together with selected
    ones, and name the command that selects them all.

    Dagster's own answer is a `DagsterInvalidSubsetError` behind fifty lines of traceback. Raises `CommandRefused`.
    """
    command = click.get_current_context(silent=True)
    selection = command.params.get(_SELECTIONS.get(command.info_name or "", "")) if command else None
    if selection is None:
        return
    graph = defs.resolve_asset_graph()
    chosen = dg.AssetSelection.from_coercible(selection.split(",")).resolve(graph)
    partly = {frozenset(graph.get(key).execution_set_asset_keys) for key in chosen}
    incomplete = {key for made_together in partly if not made_together <= chosen for key in made_together}
    if not incomplete:
        return
    asked = ", ".join(sorted(key.to_user_string() for key in chosen & incomplete))
    models = sorted({f'key:"{key.path[0]}/*"' for key in incomplete})
    whole = ",".join([*([selection] if chosen - incomplete else []), *models])
    program, *others = arguments
    corrected = [one.replace(selection, whole) if one.endswith(selection) else one for one in others]
    raise CommandRefused(
        f"{asked}: a model's assets are made together. Select all of them: "
        + shlex.join([Path(program).name, *corrected])
    )
