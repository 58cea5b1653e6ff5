"""Patterns in the plans of a model, like `layers.*.up`, where a `*` matches any single name."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (the annotations of torch are partial)

from fnmatch import fnmatchcase

from torch import nn

from resources.job.errors import BadConfiguration


def matching(core: nn.Module, pattern: str, plan: str) -> list[tuple[str, nn.Module]]:
    """Return name and module of each part of `core` that matches `pattern`, in order. Raises `BadConfiguration`, which
    names the `plan`, if none matches."""
    wanted = pattern.split(".")
    found = [
        (name, module)
        for name, module in core.named_modules()
        if len(parts := name.split(".")) == len(wanted) and all(map(fnmatchcase, parts, wanted))
    ]
    if not found:
        raise BadConfiguration(
            f"{plan} of {type(core).__name__} names {pattern!r}, but the model has no such part"
        )
    return found
