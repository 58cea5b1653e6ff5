"""Errors of an online store. Each message names the store, the reason and the remedy."""


class OnlineStoreError(Exception):
    """Base of all errors that an online store raises."""


class OnlineStoreUnavailable(OnlineStoreError):
    """The store does not answer, or is busy. The same call may work later; a repeated write changes nothing."""


class OnlineStoreRefused(OnlineStoreError):
    """The store refuses the call, or its file is damaged. Somebody has to change something first."""
