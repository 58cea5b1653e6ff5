"""Refusals of Dagster's own commands (`dg`, `dagster`) while they load the definitions: one line each, with the remedy.

Loading the definitions is the first moment at which the project can check such a command: later, Dagster has opened its
storage or failed on the selection. `ml-assets` prepares its home and selects whole models itself.
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import dagster as dg

_RUNS_ASSETS = ("dev", "launch", "asset", "job")
"""Subcommands of `dg` and `dagster` that keep history. The others, such as `dg list`, need no home."""
_SELECTIONS = {"launch": "assets", "materialize": "select"}
"""Subcommand → its option with the assets to make, for `dg launch` and `dagster asset materialize`."""


class CommandRefused(click.ClickException):
    """A command of Dagster cannot run as requested. The message is a sentence with the remedy."""


def require_home(environment: Mapping[str, str], arguments: Sequence[str], home: Path) -> None:
    """Refuse a command that would keep its history outside a prepared Dagster home.

    `arguments` are those of the process: program, subcommand and so on. Without DAGSTER_HOME, Dagster keeps history in
    a folder of the checkout that it removes afterwards. In a home without `dagster.yaml`, it uses storage that
    `ml-assets` does not read. Raises `CommandRefused`.
    """
    # `dg dev` loads nothing itself. Its code servers do, and get the storage by --instance-ref.
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
        f"DAGSTER_HOME={given} has no dagster.yaml, so Dagster would not use this project's history"
        if given
        else "DAGSTER_HOME is not set, so Dagster would write its history to a folder that it deletes"
    )
    first = "" if (home / "dagster.yaml").is_file() else "run ml-assets doctor once, then "
    raise CommandRefused(f"{lacks}: {first}export DAGSTER_HOME={home}")


def require_whole_models(defs: dg.Definitions, arguments: Sequence[str]) -> None:
    """Refuse a command whose selection contains only some assets of a model; name the command that selects all.

    Dagster itself would raise a `DagsterInvalidSubsetError` with fifty lines of traceback. Raises `CommandRefused`.
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
    ordered = [key for key in graph.toposorted_asset_keys if key in incomplete]
    models = sorted(
        ",".join(key.to_user_string() for key in ordered if key in made_together)
        for made_together in partly
        if not made_together <= chosen
    )
    whole = ",".join([*([selection] if chosen - incomplete else []), *models])
    program, *others = arguments
    corrected = [one.replace(selection, whole) if one.endswith(selection) else one for one in others]
    raise CommandRefused(
        f"{asked}: a model's assets materialize only together. Select all of them: "
        + shlex.join([Path(program).name, *corrected])
    )
