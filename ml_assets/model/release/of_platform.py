"""Release parts of a platform: its bundle store, registry and promotions."""

from ml_assets.model.release.bundle_store import BundleStore
from ml_assets.model.release.registry import Registry
from ml_assets.model.release.releases import Releases
from resources.platform import Platform


def bundles_of(platform: Platform) -> BundleStore:
    """Return the platform's bundle store."""
    return BundleStore(platform.artifacts)


def registry_of(platform: Platform) -> Registry:
    """Return the platform's registry of versions."""
    return Registry(platform.settings.resolved_tracking_uri.reveal(), bundles_of(platform).address)


def releases_of(platform: Platform) -> Releases:
    """Return the platform's registrations and promotions."""
    return Releases(platform.ledger, registry_of(platform), bundles_of(platform), platform.lake)
