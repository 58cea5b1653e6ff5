"""Script that keeps its own loop: `attach` is its door to the platform.

    from ml_assets.training.script import attach

Here: that function, without what it needs. Not here: the surface that it returns (api).
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ml_assets.training.script.api import Training


def attach() -> "Training":
    """Return the training that this process is a rank of. See `ml_assets.training.script.api.attach`."""
    from ml_assets.training.script.api import attach as attached

    return attached()
