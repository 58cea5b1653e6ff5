"""`docs/tutorial/my-csv.md` and the notebook page typed: from a CSV file to a table, features and a model."""

import re
from datetime import date, timedelta
from random import Random

import pytest

from ml_assets_tests.tour.pages import Checkout, DocsPage, Typed, masked, type_in

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
    type_in(checkout, CSV.console("4. A prediction for the next day"))
    read = "import ml_assets; print(*ml_assets.open().predict('visitors').rows.row(0))"
    day, visitors = checkout.run("python", "-c", read).split()
    assert day == "2024-07-19"
    assert 150 < float(visitors) < 400
    (read,) = NOTEBOOK.blocks("Tables", "python")
    shown = checkout.run("python", "-c", read)
    assert "shape: (5, 4)" in shown


@pytest.mark.nightly
def test_hours_of_a_file_become_a_registered_model(checkout: Checkout) -> None:
    """The naive model knew no hour apart from others, so that any model beat it."""
    (make,) = CSV.blocks("5. Hours", "python")
    checkout.run("python", "-c", make)
    scaffold, predict = CSV.console("5. Hours")
    printed = checkout.run(*scaffold.command.split()).splitlines()
    commands = [line.strip() for line in printed[printed.index("Next:") + 1 :]]
    assert commands[-1] == "ml-assets launch load 2024-04-09"
    *_, leaks, trained, predicted = checkout.type_in(
        [Typed(command, "") for command in (*commands, predict.command)]
    )
    assert leaks.startswith("no leak: ")
    assert "load/registered_model: version 1, gate blessed" in trained
    model, naive, _ = map(
        float, re.findall(r"rmse ([0-9.]+) \(naive ([0-9.]+), regression ([0-9.]+)", trained)[0]
    )
    assert model < naive < 40
    assert masked(predicted)[:4] == masked(predict.shown)[:4]
    assert len(re.findall(r"^  2024-04-10 ", predicted, re.MULTILINE)) == 24


@pytest.mark.nightly
def test_classes_of_a_file_become_a_registered_model(checkout: Checkout) -> None:
    """Texts are the label, and another column has as many texts as rows. Rain mostly follows sun, and fog rain."""
    draw, kinds, kind, lines = Random(1), ("sun", "rain", "fog"), 0, ["day,ticket,wind,weather"]
    for n in range(150):
        kind = (kind + 1) % 3 if draw.random() < 0.8 else draw.randrange(3)
        lines.append(f"{date(2024, 1, 1) + timedelta(n)},ticket {n},{draw.gauss(5, 2):.1f},{kinds[kind]}")
    (checkout.folder / "weather.csv").write_text("\n".join(lines) + "\n")
    scaffold = (
        "dg scaffold defs ml_assets.components.TrainingPipeline weather --from weather.csv --label weather"
    )
    printed = checkout.run(*scaffold.split()).splitlines()
    commands = [line.strip() for line in printed[printed.index("Next:") + 1 :]]
    *_, leaks, trained = answers = checkout.answers(commands)
    assert [status for status, _ in answers] == [0] * len(commands), answers
    assert leaks[1].startswith("no leak: ")
    assert "weather/registered_model: version 1" in trained[1]
    model, naive = map(float, re.findall(r"logloss ([0-9.]+) \(naive ([0-9.]+)", trained[1])[0])
    assert model < naive
