"""One way in: the platform in a home, for commands, notebooks, pages and programs.

    import ml_assets

    context = ml_assets.open()
    context.show("flight_delay").evaluation.status

`Context` has what a person asks for. Errors: `errors`; home and settings: `home`. Dagster is imported at first use.
"""

from ml_assets.context.context import Context, History, ShownVersion, open_context
from ml_assets.context.errors import ContextError, HomeRefused, LaunchRefused, NotFound, ReadOnly, RunFailed

__all__ = [
    "Context",
    "ContextError",
    "History",
    "HomeRefused",
    "LaunchRefused",
    "NotFound",
    "ReadOnly",
    "RunFailed",
    "ShownVersion",
    "open_context",
]
