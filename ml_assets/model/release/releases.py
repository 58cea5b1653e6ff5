"""All decisions about releases in one object: registration, promotion, reviews, and the way out of production."""

from ml_assets.model.release.promotion import Promotions
from ml_assets.model.release.registration import Registration
from ml_assets.model.release.reviews import Reviews
from ml_assets.model.release.way_back import WayBack


class Releases(Registration, Promotions, Reviews, WayBack):
    """Releases of all models."""
