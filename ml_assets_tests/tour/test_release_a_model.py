"""`docs/tutorial/release-a-model.md` typed: two people, a canary, and the same bits with one worker."""

import shutil

import pytest

from ml_assets_tests.tour.pages import ROOT, Checkout, DocsPage, type_in

pytestmark = pytest.mark.timeout(1500)
"""Two tables of a year and three trainings of 30 epochs: a minute on two idle cores."""

PAGE = DocsPage.of("tutorial/release-a-model.md")


def test_two_people_release_the_example(checkout: Checkout) -> None:
    shutil.copytree(
        ROOT / "ml_assets" / "defs" / "store_demand",
        checkout.folder / "ml_assets" / "defs" / "store_demand",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    for title in ("1. Train", "2. Approve", "3. Promote", "4. Train it again"):
        type_in(checkout, PAGE.console(title))
