"""Groups of commands that suggest the nearest command for an unknown name."""

import click

from resources.words import did_you_mean


class SuggestingGroup(click.Group):
    """Click group whose usage error for an unknown command ends with "did you mean …?"."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command as `click.Group` does. `click.UsageError` names the command to use."""
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-"):
            parents = ctx.command_path.split()[1:]  # without the program's name
            typed = " ".join([*parents, args[0]])
            ctx.fail(f"no command '{typed}'{did_you_mean(args[0], known)}")
        return super().resolve_command(ctx, args)
