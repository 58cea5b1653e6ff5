"""The release parts of a platform: where bundles are kept, which registry lists versions."""

from ml_assets.release.bundle_store import BundleStore
from ml_assets.release.promotion import Releases
from ml_assets.release.registry import Registry
from resources.platform import Platform


def bundles_of(platform: Platform) -> BundleStore:
    """All bundles, each once by digest."""
    return BundleStore(platform.artifacts)


def registry_of(platform: Platform) -> Registry:
    """Registered versions."""
    return Registry(platform.settings.resolved_tracking_uri.reveal(), bundles_of(platform).address)


def releases_of(platform: Platform) -> Releases:
    """Promotions."""
    return Releases(platform.ledger, registry_of(platform), bundles_of(platform), platform.lake)
