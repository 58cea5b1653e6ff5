"""Commands `ml-assets …`: the platform from a terminal.

Here: reading arguments, calling the parts, printing the result and the next command. Not here: the work of a stage.
A command is imported when it is called, so `--help` answers at once.
"""

import sys
from importlib import import_module

import click

from ml_assets.cli.groups import SuggestingGroup
from ml_assets.cli.problems import Stopped, explained

COMMANDS = {
    "demo": "Build a registered model from raw data on this machine.",
    "plan": "Show what a launch of a model would run, and why.",
    "launch": "Materialize a model or a table in this process.",
    "source": "Show rows of a dataset's source, and a contract for them; check sources.",
    "online": "Print the newest feature row of an entity, as requests get it.",
    "skew": "Compare served rows with the feature table, bit by bit.",
    "leaktest": "Rebuild features without the future; require identical rows.",
    "accept": "Accept a rejected partition as it is, with a reason.",
    "acceptances": "List accepted partitions: who accepted them, and why.",
    "quarantine": "Show rows that were set aside; readmit them after a fix.",
    "card": "Print the model card of a version: use, data, metrics, limits, lineage.",
    "diff": "Show what differs between two versions, and what moved on the same rows.",
    "promote": "Put a registered version into production, with a reason.",
    "approve": "Approve a version's evaluation, so that it may be promoted.",
    "reject": "Reject a version's evaluation, so that it is not promoted.",
    "rules": "Show the rules of releases in force; accept a change of them.",
    "canary": "Show what the requests of a model's canary show so far.",
    "review": "Serve the page on which a person approves or rejects versions.",
    "rollback": "Return to the version that was in production before.",
    "demote": "Take a model out of production, with a reason.",
    "archive": "Take a version out of use for good, with a reason.",
    "serve": "Answer requests with the versions in production, over HTTP.",
    "history": "Show every decision about a model, or what was in production when.",
    "digest": "Show what happened on a day, and who has to act.",
    "accounts": "Add, list and revoke accounts of persons, who prove who they are.",
    "dossier": "Sign the documents of a version; export them with its bundle.",
    "reproduce": "Train a version again and compare weights, predictions, metrics.",
    "verify": "Verify a dossier with a public key, without this platform.",
    "ledger": "Check that no decision was changed; show the schema revision.",
    "drill": "Damage a short real training and check its recovery.",
    "trainings": "Remove abandoned trainings from the cluster.",
    "lake": "Set up the lake; check that its commits were audited; move it to lakeFS.",
    "gc": "Show what nothing needs any more, in bytes; delete it.",
    "events": "Show old events that Dagster no longer needs; delete them.",
    "home": "Give MLflow the addresses of a home that was moved or restored.",
    "env": "Work in an environment: a branch of the lake; compare it, merge it, drop it.",
    "data": "Show history and differences of the data; copy it; blame a day.",
    "doctor": "Check settings, storage and versions; name the remedies.",
    "ui": "Serve Dagster's pages and run its daemon, on 127.0.0.1.",
}


class _LazyGroup(SuggestingGroup):
    """Group that loads each command from the module of its name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        return import_module(f"ml_assets.cli.{cmd_name}").command

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Stopped() from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="All files are under ~/.ml-assets; ML_ASSETS_HOME moves them. ML_ASSETS_TRACEBACK=1 prints the traceback "
    "of an error.",
)
def group() -> None:
    """Turn dated raw data into registered PyTorch models, as Dagster assets on versioned inputs."""


def main() -> None:
    """Run a command. A known problem ends with one sentence and exit status 1, not with a traceback."""
    with explained():
        group(prog_name="ml-assets")
    sys.exit(0)
