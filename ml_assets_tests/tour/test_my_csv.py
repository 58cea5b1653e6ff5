"""`docs/tutorial/my-csv.md` and the notebook page typed: from a CSV file to a table, features and a model."""

import pytest

from ml_assets_tests.tour.pages import Checkout, DocsPage, type_in

pytestmark = pytest.mark.timeout(1500)
"""Two tables of 200 days and a training of 144 rows: half a minute on two idle cores."""

CSV = DocsPage.of("tutorial/my-csv.md")
NOTEBOOK = DocsPage.of("how-to/notebook.md")


def test_the_file_of_the_page_becomes_a_registered_model(checkout: Checkout) -> None:
    (make,) = CSV.blocks("1. The file", "python")
    checkout.run("python", "-c", make)
    (scaffold,) = CSV.console("2. Scaffold")
    printed = checkout.run(*scaffold.command.split()).splitlines()
    assert printed[1:] == scaffold.shown.splitlines()[1:]
    typed = CSV.console("3. From rows to a model")
    said = [line.strip() for line in printed[printed.index("Next:") + 1 :]]
    assert [one.command for one in typed if " plan " not in one.command] == said
    type_in(checkout, typed)
    (read,) = NOTEBOOK.blocks("Tables", "python")
    shown = checkout.run("python", "-c", read)
    assert "shape: (5, 4)" in shown
