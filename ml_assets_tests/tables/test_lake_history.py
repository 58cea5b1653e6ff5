"""The embedded lake shows its history."""

from ml_assets_tests.tables.history_contract import LakeHistoryContract


class TestHistoryOfLocalStore(LakeHistoryContract):
    """The fixture `orders` is that of this folder."""
