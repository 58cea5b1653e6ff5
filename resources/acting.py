"""Person who acts: proved by a token, by an ID token, or named without a proof.

Not here: accounts (`resources.ledger.accounts`), the check of an ID token (`resources.web.oidc`).
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from resources.ledger import Account, Accounts, IdentityRefused, LaunchedIn, Launches, Person
from resources.settings import Settings

_launched_in: LaunchedIn = "dagster"


@contextmanager
def launched_in_terminal() -> Generator[None]:
    """Mark the runs of this process, within the block, as launched by the acting person in a terminal.

    A variable of the process and no tag of the run: in Dagster's pages, anybody may write tags.
    """
    global _launched_in
    before, _launched_in = _launched_in, "terminal"
    try:
        yield
    finally:
        _launched_in = before


def author_of_run(ids: Sequence[str], launches: Launches, acting: Person) -> tuple[Person, LaunchedIn]:
    """Return the author of the results of a run, and where that person launched it.

    `ids` begins with the run's own id; those of what it continues follow: the run that it retries, its backfill. Only
    the ledger says who launched them. Without a row it is `acting`, the process that executes the run.
    """
    if _launched_in != "dagster":
        return acting, _launched_in
    launcher = launches.launcher(ids)
    return (acting, "dagster") if launcher is None else (launcher, "pages")


def acting_person(settings: Settings, accounts: Accounts) -> Person:
    """Return the person of the environment. Raise `IdentityRefused` for a proof that proves no account.

    Without a proof the name is that of the settings, checked by nobody.
    """
    given = {"ML_ASSETS_TOKEN": settings.token, "ML_ASSETS_OIDC_TOKEN": settings.oidc_token}
    proofs = {variable: secret.get_secret_value() for variable, secret in given.items() if secret is not None}
    if not proofs:
        return Person.unchecked(settings.author)
    if len(proofs) > 1:
        raise IdentityRefused(f"{' and '.join(proofs)} are both set, and one person acts: unset one of them")
    ((variable, proof),) = proofs.items()
    try:
        return proved_person(proof, accounts)
    except IdentityRefused as refused:
        raise IdentityRefused(f"{variable}: {refused}") from None


def proved_person(proof: str, accounts: Accounts) -> Person:
    """Return the person whose account a token, or an ID token of an OIDC issuer, proves. Raise `IdentityRefused`."""
    proof = proof.strip()
    if proof.count(".") != 2:  # an ID token has three parts, a token none
        found = accounts.of_token(proof)
        return Person.proved(found, "token")
    found = _account_of(proof, accounts.in_force())
    return Person.proved(found, "oidc")


def require_proof_of(first: Account, settings: Settings) -> None:
    """Raise `IdentityRefused` unless the ID token of the environment proves `first`, the first account of a ledger.

    A mistyped issuer, subject or audience would lock the ledger: nobody else could add or revoke an account.
    """
    if settings.oidc_token is None:
        raise IdentityRefused(
            f"nobody proved the first account {first.name}: set ML_ASSETS_OIDC_TOKEN to an ID token of it. If its "
            "subject were mistyped, nobody could add an account any more"
        )
    try:
        _account_of(settings.oidc_token.get_secret_value().strip(), [first])
    except IdentityRefused as refused:
        raise IdentityRefused(f"ML_ASSETS_OIDC_TOKEN: {refused}") from None


def _account_of(id_token: str, accounts: Sequence[Account]) -> Account:
    """Return the account that an ID token proves. Raise `IdentityRefused`."""
    from resources.web import oidc  # needs a package that few installations have

    return oidc.account_of(id_token, accounts)
