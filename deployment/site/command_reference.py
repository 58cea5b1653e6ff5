"""Reference page of the commands."""

from collections.abc import Iterator

import click

from deployment.site.yaml_reference import table
from ml_assets import cli

_INTRO = "Made from the code; `ml-assets COMMAND --help` prints the same."


def commands() -> str:
    """Return the Markdown of the page."""
    parts = _parts(cli.group, click.Context(cli.group, info_name="ml-assets"))
    return "\n\n".join(["# Commands", _INTRO, *parts]) + "\n"


def _parts(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield the paragraphs about a command and those below it."""
    depth = context.command_path.count(" ")
    if depth:
        yield f"{'#' * (depth + 1)} {context.command_path.removeprefix('ml-assets ')}"
    if command.help:
        yield "\n".join(line.strip() for line in command.help.replace("\b", "").strip().splitlines())
    if not isinstance(command, click.Group):
        yield f"```text\n{' '.join([context.command_path, *command.collect_usage_pieces(context)])}\n```"
    options = [
        one for one in command.get_params(context) if isinstance(one, click.Option) and one.name != "help"
    ]
    records = filter(None, (one.get_help_record(context) for one in options))
    rows = [(f"`{names}`", meaning) for names, meaning in records]
    if rows:
        yield table(("option", "meaning"), rows)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield from _parts(below, click.Context(below, info_name=name, parent=context))
