"""Reference page of the commands, in the sections of `ml-assets --help`."""

from collections.abc import Iterator

import click

from deployment.site.yaml_reference import table
from ml_assets import cli

_INTRO = "Made from the code; `ml-assets COMMAND --help` prints the same."


def commands() -> str:
    """Return the Markdown of the page."""
    context = click.Context(cli.group, info_name="ml-assets")
    parts = ["# Commands", _INTRO, *_own_parts(cli.group, context)]
    for heading, names in cli.SECTIONS.items():
        parts.append(f"## {heading}")
        for name in names:
            parts += _below(cli.group, context, name)
    return "\n\n".join(parts) + "\n"


def _below(group: click.Group, context: click.Context, name: str) -> Iterator[str]:
    """Yield the paragraphs about the command `name` of a group, and about those below it."""
    command = group.get_command(context, name)
    if command is None or command.hidden:
        return
    own = click.Context(command, info_name=name, parent=context)
    path = own.command_path.removeprefix("ml-assets ")
    yield f"{'#' * (path.count(' ') + 3)} {path}"
    yield from _own_parts(command, own)
    if isinstance(command, click.Group):
        for one in command.list_commands(own):
            yield from _below(command, own, one)


def _own_parts(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield the paragraphs about a command: its help, its usage, its options."""
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
