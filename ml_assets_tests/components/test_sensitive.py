"""A sensitive column's values are in the table's files and nowhere else that a run writes."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ml_assets_tests.components import readings_pipeline
from ml_assets_tests.components.installation import Installation, readings_components
from ml_assets_tests.components.readings_pipeline import MACHINES, READINGS, Source, days

NAME, NUMBER = "lovelace", 77.654321
PLANTED = (NAME, "77.65")


def _named(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(pl.col("machine").replace(MACHINES, [f"ada-{NAME}-{n}" for n in range(4)]))


SPOILED: list[Callable[[pl.DataFrame], pl.DataFrame]] = [
    lambda rows: rows,
    lambda rows: rows.with_columns(
        machine=pl.col("machine").str.to_uppercase().str.replace("ADA", f"{NAME}!")
    ),
    lambda rows: pl.concat([rows, rows.head(3)]),
    lambda rows: rows.with_columns(load=pl.lit(NUMBER)),
    lambda rows: rows.with_columns(load=pl.lit(f"{NUMBER} kg")),
    lambda rows: rows.rename({"machine": "worker"}),
    lambda rows: rows.with_columns(pl.col("at") + pl.duration(days=40)),
    lambda rows: rows.with_columns(made=pl.lit(-1.0)),
]
"""A good day, then one for each rule that shows values or the rows they stand in."""


def _world(home: Path, *, sensitive: bool) -> Installation:
    contract: dict[str, Any] = deepcopy(readings_pipeline.DATASET["contract"])
    by_name = {column["name"]: column for column in contract["columns"]}
    by_name["machine"] = {
        "name": "machine",
        "dtype": "string",
        "pattern": "[a-z0-9-]+",
        "sensitive": sensitive,
    }
    by_name["load"] |= {"sensitive": sensitive}
    return Installation(
        home, readings_components(dataset={"contract": contract | {"columns": list(by_name.values())}})
    )


def _written(installation: Installation, said: str) -> dict[str, str]:
    """Place → everything a run wrote there, but for the table's own files."""
    events = [
        str(one)
        for run in installation.instance.get_runs()
        for one in installation.instance.all_logs(run.run_id)
    ]
    places = {
        "events": "\n".join(events),
        "log": said,
        "commits": repr(list(installation.platform.lake.log("main"))),
    }
    for path in installation.settings.home.rglob("*"):
        if path.is_file() and not (content := path.read_bytes()).startswith(b"PAR1"):
            places[str(path)] = content.decode(errors="replace")
    return places


@pytest.mark.parametrize("sensitive", [True, False])
def test_values_of_a_sensitive_column_are_in_nothing_that_a_run_writes(
    tmp_path: Path, source: Source, capfd: pytest.CaptureFixture[str], sensitive: bool
) -> None:
    wanted = days(len(SPOILED))
    for day, spoil in zip(wanted, SPOILED, strict=True):
        source.spoiled[day] = lambda rows, spoil=spoil: spoil(_named(rows))
    installation = _world(tmp_path / "home", sensitive=sensitive)
    assert not installation.run(READINGS, partition=wanted[0], last=wanted[-1]).success
    newest = installation.platform.ledger.newest_verdicts(READINGS)
    assert [day for day in wanted if newest[day].blocks] == wanted[1:]
    out, err = capfd.readouterr()
    places = _written(installation, out + err)
    found = {value: [place for place, text in places.items() if value in text.lower()] for value in PLANTED}
    if sensitive:
        assert not any(found.values()), found
        assert any("(hidden)" in text for text in places.values())
        assert installation.main.manifest(READINGS, wanted[0]).profile["columns"]["machine"] == {
            "nulls": 0,
            "hidden": True,
        }
    else:
        assert all(found.values()), "what is not sensitive is shown"
    assert installation.main.scan(READINGS, wanted[:1]).collect()["machine"].str.contains(NAME).all()
