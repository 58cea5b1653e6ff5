"""Home of a test that works in one home, without a command or a context."""

from ml_assets.context.home import make_home, point_dagster
from resources.settings import Settings


def prepare_home(settings: Settings) -> None:
    """Make the home, and point Dagster at it, as a command that writes does."""
    make_home(settings)
    point_dagster(settings)
