"""The pages of persons who sign in at an issuer. `make test-servers` builds its programs, and runs these tests."""

from collections.abc import Iterator

import pytest

from ml_assets_tests.browser.conftest import browser, screenshots  # noqa: F401 - fixtures
from ml_assets_tests.servers.sign_in.sign_in_pages import CLIENT, SUBJECTS, SignInPages, signing_in


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SignInPages]:
    """Accounts of the issuer: `eve`, a viewer; `bob`, an operator of the group `flights`; `ada`, an approver. `kim` has
    none.
    """
    with signing_in(tmp_path_factory.mktemp("signed")) as pages:
        for name in ("eve", "bob", "ada"):
            pages.ledger.accounts.add_by_oidc(
                name, pages.root, issuer=pages.issuer, subject=SUBJECTS[name], audience=CLIENT
            )
        pages.ledger.accounts.set_role("bob", "operator", pages.root, groups=["flights"], reason="test")
        pages.ledger.accounts.set_role("ada", "approver", pages.root, reason="test")
        yield pages
