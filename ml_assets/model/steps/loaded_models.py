"""Models that a worker of a pool loaded: once for the process, not for each of its tasks."""

from ml_assets.model.release.releases import bundles_of
from ml_assets.model.release.runtime import ServingModel
from resources.platform import Platform

_MOST = 2
"""Models that stay loaded: the version in production, and the canary."""
_loaded: dict[str, ServingModel] = {}


def model_here(platform: Platform, digest: str) -> ServingModel:
    """Return the model of a stored bundle. It uses one thread: each core has a worker.

    Raises `BundleMissing`, `BundleDamaged`, and what `ServingModel.load` raises.
    """
    if digest not in _loaded:
        if len(_loaded) == _MOST:
            _loaded.clear()
        _loaded[digest] = ServingModel.load(bundles_of(platform).open(digest).folder)
    return _loaded[digest]
