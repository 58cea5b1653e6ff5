"""The label that a scaffold guesses from a file: by its name or place, or not at all."""

from datetime import date, timedelta
from pathlib import Path
from random import Random

import pytest

from ml_assets.components.scaffold.csv_tables import CsvTable, GivenOptions, infer
from ml_assets.components.scaffold.refusals import CsvRefused
from ml_assets.components.scaffold.rows_of_file import read_rows

VALUES = {
    "flag": ("yes", "no"),
    "bit": ("0", "1"),
    "number": tuple(map(str, range(50))),
    "class": ("sun", "rain", "fog"),
    "note": (),
}
"""Kind of a column → its values; a note differs in each row."""


def _inferred(folder: Path, columns: dict[str, str], **given: str) -> CsvTable:
    """Return the facts of a file with a day and `columns`: name → kind."""
    draw, lines = Random(1), [",".join(["day", *columns])]
    for n in range(200):
        values = (draw.choice(VALUES[kind]) if VALUES[kind] else f"note {n}" for kind in columns.values())
        lines.append(",".join([str(date(2024, 1, 1) + timedelta(days=n)), *values]))
    file = folder / "table.csv"
    file.write_text("\n".join(lines))
    known = [given.pop("known")] if "known" in given else []
    return infer(read_rows(file), GivenOptions(known=known, **given))


@pytest.mark.parametrize(
    ("columns", "label", "why", "runner_up"),
    [
        ({"target": "number", "rain": "number"}, "target", "by its name", "rain"),
        ({"churned": "flag", "premium": "flag", "age": "number"}, "churned", "by its name", "premium"),
        ({"is_fraud": "bit", "region": "class"}, "is_fraud", "by its name", "region"),
        ({"Y": "class", "rain": "number"}, "y", "by its name", "rain"),
        ({"rain": "number", "left": "flag", "sold": "number"}, "sold", "the last column", "left"),
        ({"rain": "number", "left": "flag"}, "left", "the last column", "rain"),
        ({"rain": "number", "sold": "number", "note": "note"}, "sold", "the last number", "rain"),
        ({"shape": "class", "sky": "class", "note": "note"}, "sky", "the last text with few values", "shape"),
        # a two-valued text in the last place is yes and no in other words
        ({"rain": "number", "open": "flag"}, "open", "the last column", "rain"),
    ],
)
def test_the_label_is_guessed_by_name_or_place(
    tmp_path: Path, columns: dict[str, str], label: str, why: str, runner_up: str
) -> None:
    table = _inferred(tmp_path, columns)
    [guess] = [one for one in table.guesses if one.about == "label"]
    assert table.label.name == label
    assert guess.value.endswith(why)
    assert guess.otherwise == f"{runner_up} could be predicted, too: --label {runner_up}"


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        ({"premium": "flag", "left": "flag"}, "--label premium or --label left"),
        ({"paid": "bit", "left": "flag", "note": "note"}, "--label paid or --label left"),
        ({"target": "number", "label": "flag"}, "--label target or --label label"),
        ({"rain mm": "number", "sky now": "class"}, "--label 'rain mm' or --label 'sky now'"),
    ],
)
def test_equally_likely_labels_are_named_with_the_option(
    tmp_path: Path, columns: dict[str, str], options: str
) -> None:
    with pytest.raises(CsvRefused) as refused:
        _inferred(tmp_path, columns)
    assert str(refused.value).endswith(f"say which one, with {options}")
    for name in [name for name, kind in columns.items() if kind != "note"]:
        assert _inferred(tmp_path, columns, label=name).label.why == ""


def test_a_column_known_in_advance_is_not_guessed_as_label(tmp_path: Path) -> None:
    table = _inferred(tmp_path, {"left": "flag", "holiday": "flag"}, known="holiday")
    assert (table.label.name, table.known) == ("left", ("holiday",))
