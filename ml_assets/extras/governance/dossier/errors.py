"""Errors of dossiers."""


class DossierRefused(Exception):
    """A dossier does not prove its bundle. The message names the altered part and the remedy."""


class SigningKeyRefused(Exception):
    """A key cannot be used. The message has the reason and the remedy."""
