"""`docs/tutorial/add-a-pipeline.md` typed line by line: every command works and says what the page shows."""

import re
import shutil

import pytest

from ml_assets_tests.tour.pages import Checkout, DocsPage, Typed, masked, type_in

pytestmark = pytest.mark.timeout(1500)
"""Two trainings and four tables of 91 days: a minute and a half on two idle cores."""

PAGE = DocsPage.of("tutorial/add-a-pipeline.md")


@pytest.fixture(scope="module")
def scaffolded(checkout: Checkout) -> list[str]:
    """Lines that the page's first command printed."""
    (scaffold,) = PAGE.console("1. Scaffold")
    return checkout.run(*scaffold.command.split()).splitlines()


@pytest.fixture(scope="module")
def trained(checkout: Checkout, scaffolded: list[str]) -> None:
    """The commands that the scaffold printed were typed, and said what the page shows."""
    typed = PAGE.console("2. See it work")
    printed = scaffolded[scaffolded.index("Next:") + 1 :]
    assert [one.command for one in typed] == [line.strip() for line in printed]
    type_in(checkout, typed)


def test_the_page_shows_what_the_scaffold_prints(scaffolded: list[str]) -> None:
    (scaffold,) = PAGE.console("1. Scaffold")
    assert scaffolded[1:] == scaffold.shown.splitlines()[1:]


@pytest.mark.usefixtures("trained")
def test_the_pages_own_pipeline_trains_is_promoted_and_answers(checkout: Checkout) -> None:
    files = checkout.folder / "ml_assets" / "defs" / "energy"
    source, features = PAGE.blocks("3. Make it yours", "python")
    (declared,) = PAGE.blocks("3. Make it yours", "yaml")
    for name, text in {"source.py": source, "features.py": features, "defs.yaml": declared}.items():
        (files / name).write_text(text)
    check, *others = PAGE.console("4. Check, run, promote")
    assert all(line in checkout.run(*check.command.split()) for line in check.shown.splitlines())
    build = [Typed(one.command, "") for one in PAGE.console("2. See it work")[:2]]
    checkout.type_in(build)
    type_in(checkout, others)
    (serve,) = PAGE.blocks("4. Check, run, promote", "python")
    answer = re.search(r"# (\[.*\])$", serve, re.MULTILINE)
    assert answer
    assert masked(checkout.run("python", "-c", serve)) == masked(answer[1])


@pytest.mark.usefixtures("scaffolded")
def test_a_typo_is_the_line_on_the_page_wherever_it_is_read(checkout: Checkout) -> None:
    (typed, *_) = PAGE.console("When something is wrong")
    files = checkout.folder / "ml_assets" / "defs" / "energy"
    shutil.copy(files / "defs.yaml", right := checkout.folder / "right.yaml")
    (declared,) = PAGE.blocks("3. Make it yours", "yaml")
    (files / "defs.yaml").write_text(declared.replace("epochs: 10", "epoch: 10"))
    assert checkout.run(*typed.command.split(), status=1) == typed.shown
    checked = checkout.run("dg", "check", "defs", "--no-check-yaml", status=1)
    assert typed.shown.removeprefix("Error: ") in checked
    right.replace(files / "defs.yaml")
