"""Scripts that keep their own training loop: `attach` connects one to the platform.

    from ml_assets.model.training.script import attach

Here: that function, without heavy imports. Not here: the object that it returns (api).
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ml_assets.model.training.script.api import Training


def attach() -> "Training":
    """Return the training of which this process is a rank. See `ml_assets.model.training.script.api.attach`."""
    from ml_assets.model.training.script.api import attach as attached

    return attached()
