"""Commands `ml-assets …`: the platform from a terminal.

Here: reading arguments, calling the parts, printing the result and the next command. Not here: the work of a stage.
A command's module is imported when the command is called, so `--help` answers at once. `run`, `look`, `decide`,
`spending`, `tables`, `data`, `operate`, `ui` and `stores` declare commands and import heavy parts in functions only, so
the help of a command is fast, too. The other modules import all at their top.
"""

import gc
import sys
from collections.abc import Mapping
from importlib import import_module

import click

from ml_assets.cli.terminal import Stopped, SuggestingGroup, explained, say
from ml_assets.foundation.checkout import version

SECTIONS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Run models": {
        "demo": ("run", "Build a registered model from raw data on this machine."),
        "plan": ("run", "Show what a launch of a model would run, and why."),
        "launch": ("run", "Materialize a model or a table in this process."),
        "register": ("run", "Evaluate a model that was trained elsewhere; register it if it passes."),
        "predict": ("look", "Predict the partition that comes next from what is known now."),
        "serve": ("run", "Answer requests with the versions in production, over HTTP."),
        "reproduce": ("run", "Train a version again and compare weights, predictions, metrics."),
    },
    "Look at results": {
        "card": ("look", "Print the model card of a version: use, data, metrics, limits, lineage."),
        "diff": ("look", "Show what differs between two versions, and what moved on the same rows."),
        "history": ("look", "Show every decision about a model, or what was in production when."),
        "canary": ("look", "Show what the requests of a model's canary show so far."),
        "digest": ("look", "Show what happened on a day, and who has to act."),
        "costs": ("spending", "Show what trainings reserved and cost, and where their time went."),
        "leaktest": ("look", "Rebuild features without the future; require identical rows."),
        "skew": ("look", "Compare served rows with the feature table, bit by bit."),
        "verify": ("look", "Verify a dossier with a public key, without this platform."),
    },
    "Decide": {
        "accept": ("tables", "Accept a rejected partition as it is, with a reason."),
        "acceptances": ("tables", "List accepted partitions: who accepted them, and why."),
        "approve": ("decide", "Approve a version's evaluation, so that it may be promoted."),
        "reject": ("decide", "Reject a version's evaluation, so that it is not promoted."),
        "review": ("decide", "Serve the page on which a person approves or rejects versions."),
        "promote": ("decide", "Put a registered version into production, with a reason."),
        "rollback": ("decide", "Return to the version that was in production before."),
        "demote": ("decide", "Take a model out of production, with a reason."),
        "archive": ("decide", "Take a version out of use for good, with a reason."),
        "rules": ("decide", "Show the rules of releases in force; accept a change of them."),
        "dossier": ("decide", "Sign the documents of a version; export them with its bundle."),
    },
    "Work with data": {
        "source": ("tables", "Show rows of a dataset's source, and a contract for them; check sources."),
        "data": ("data", "Show history and differences of the data; copy it; blame a day."),
        "quarantine": ("tables", "Show rows that were set aside; readmit them after a fix."),
        "online": ("tables", "Print the newest feature row of an entity, as requests get it."),
        "env": ("data", "Work in an environment: a branch of the lake; compare it, merge it, drop it."),
    },
    "Operate the platform": {
        "ui": ("ui", "Serve Dagster's pages and run its daemon, on 127.0.0.1."),
        "proxy": ("ui", "Let each person do in Dagster's pages what their role allows."),
        "api": ("ui", "Let programs launch, follow and decide over HTTP, each by its role."),
        "doctor": ("operate", "Check settings, storage and versions; name the remedies."),
        "drill": ("operate", "Damage a short real training and check its recovery."),
        "accounts": ("stores", "Add, list and revoke accounts of persons, who prove who they are."),
        "ledger": ("stores", "Check that no decision was changed; show the schema revision."),
        "lake": ("stores", "Set up the lake; check that its commits were audited; move it to lakeFS."),
        "home": ("stores", "Give MLflow the addresses of a home that was moved or restored."),
        "gc": ("operate", "Show what nothing needs any more, in bytes; delete it."),
        "events": ("operate", "Show old events that Dagster no longer needs; delete them."),
        "trainings": ("operate", "Remove abandoned trainings from the cluster."),
    },
}
"""Purpose of a person → command → its module, and its line in the help. In the module it has the same name."""
_COMMANDS = {name: row for commands in SECTIONS.values() for name, row in commands.items()}
_LONGEST = max(map(len, _COMMANDS))


class _LazyGroup(SuggestingGroup):
    """Group that imports the module of a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, text = _COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(f"ml_assets.cli.{module}"), cmd_name)
        command.short_help = text
        return command

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Stopped() from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, commands in SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(_LONGEST), text) for name, (_, text) in commands.items()])


def _say_version(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        say(f"ml-assets {version()}")
        context.exit()


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="All files are under ~/.ml-assets; ML_ASSETS_HOME moves them. ML_ASSETS_TRACEBACK=1 prints the traceback "
    "of an error.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_say_version,
    help="Print the version.",
)
def group() -> None:
    """Turn dated raw data into registered PyTorch models, as Dagster assets on versioned inputs."""


_YOUNG = 300_000
"""New objects after which Python looks for garbage in a command. With its own 700, that takes a tenth of the time of
`plan`: what imports and definitions make stays."""


def main() -> None:
    """Run a command. A known problem ends with one sentence and exit status 1, not with a traceback."""
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
    with explained():
        group(prog_name="ml-assets")
    sys.exit(0)
