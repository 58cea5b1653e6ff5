"""Person who acts: proved by a token, by an ID token, or named without a proof.

Not here: accounts (`resources.ledger.accounts`), the check of an ID token (`resources.oidc`).
"""

from resources.ledger import Accounts, IdentityRefused, Person
from resources.settings import Settings


def acting_person(settings: Settings, accounts: Accounts) -> Person:
    """Return the person of the environment. Raise `IdentityRefused` for a proof that proves no account.

    Without a proof the name is that of the settings, checked by nobody.
    """
    token = settings.token
    if token is not None:
        return person_of_token(token.get_secret_value(), accounts)
    return Person(name=settings.author)


def person_of_token(token: str, accounts: Accounts) -> Person:
    """Return the person whose account `token` proves. Raise `IdentityRefused`."""
    try:
        return Person(name=accounts.of_token(token.strip()).name, checked_by="token")
    except IdentityRefused as refused:
        raise IdentityRefused(f"ML_ASSETS_TOKEN: {refused}") from None
