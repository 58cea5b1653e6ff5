"""Names in the plans by which a model says how it can be divided: `blocks.*.up`, a `*` for any one name."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (the annotations of torch are partial)

from fnmatch import fnmatchcase

from torch import nn

from resources.job.errors import BadConfiguration


def matching(core: nn.Module, pattern: str, plan: str) -> list[tuple[str, nn.Module]]:
    """Name and module of each part of `core` that `pattern` means, in order. Raises `BadConfiguration`, naming the
    `plan`, where there is none."""
    wanted = pattern.split(".")
    found = [
        (name, module)
        for name, module in core.named_modules()
        if len(parts := name.split(".")) == len(wanted) and all(map(fnmatchcase, parts, wanted))
    ]
    if not found:
        raise BadConfiguration(f"{plan} of {type(core).__name__} names {pattern!r}, which it does not have")
    return found
