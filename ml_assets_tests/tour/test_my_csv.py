"""`docs/tutorial/my-csv.md` and the notebook page typed: from a CSV file to a table, features and a model."""

import re
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
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
    beyond = (
        "remove `end` from the partitions in its defs.yaml, then: ml-assets launch datasets/load 2024-04-10\n"
    )
    assert predicted.endswith(beyond)


@pytest.mark.nightly
def test_a_model_of_days_predicts_from_a_table_of_hours(checkout: Checkout) -> None:
    """The refusal of a model of hours names such a table. `predict` refused it, and the hours of a day that runs."""
    begin = datetime(2024, 1, 1, tzinfo=UTC)
    lines = ["at,clicks"]
    for n in range(24 * 24 + 5):
        lines.append(
            f"{begin + timedelta(hours=n):%Y-%m-%d %H:%MZ},{Random(n).gauss(n % 24 + n // 8, 1):.1f}"
        )
    file = checkout.folder / "clicks.csv"
    file.write_text("\n".join([*lines[:-5], ""]))
    scaffold = (
        "dg scaffold defs ml_assets.components.TrainingPipeline clicks --from clicks.csv --time-zone UTC"
    )
    checkout.run(*scaffold.split())
    file.write_text("\n".join([*lines, ""]))
    folder = checkout.folder / "ml_assets" / "defs" / "clicks"
    _edit(
        folder / "defs.yaml",
        ("cadence: daily # a", "cadence: hourly # a"),
        ("lookback: ", "cadence: hourly\n      lookback: "),
        ("  volume: {", "  volume: off # {"),
        ("end: 2024-01-24", "end: 2024-01-31"),
    )
    _edit(
        folder / "source.py",
        ("end = day + timedelta(days=1)", "over = day + timedelta(hours=1)"),
        ("    over = datetime.combine(end, time(), ZoneInfo(ZONE)).astimezone(UTC)\n", ""),
        ('DAY = pl.col("at").dt.convert_time_zone(ZONE).dt.date()', 'DAY = pl.col("at").dt.truncate("1h")'),
    )
    *_, leaks, trained, predicted = checkout.type_in(
        [
            Typed(command, "")
            for command in (
                "ml-assets launch datasets/clicks 2024-01-01T00..2024-01-25T04",
                "ml-assets launch features/clicks 2024-01-01..2024-01-24",
                "ml-assets leaktest features/clicks",
                "ml-assets launch clicks 2024-01-24",
                "ml-assets predict clicks",
            )
        ]
    )
    assert leaks.startswith("no leak: ")
    assert "clicks/registered_model: version 1" in trained
    assert predicted.startswith("clicks 2024-01-25, by version 1,")
    assert len(re.findall(r"^  2024-01-25 ", predicted, re.MULTILINE)) == 24
    assert predicted.endswith("ml-assets launch datasets/clicks 2024-01-25T00..2024-01-25T23\n")


def _edit(file: Path, *changes: tuple[str, str]) -> None:
    text = file.read_text()
    for before, now in changes:
        assert before in text
        text = text.replace(before, now)
    file.write_text(text)


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
