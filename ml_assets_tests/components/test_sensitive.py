"""A sensitive column's values are in the table's files and nowhere else that a run writes."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ml_assets_tests.components import plant
from ml_assets_tests.components.plant import MACHINES, READINGS, Source, days
from ml_assets_tests.components.world import World, plant_components

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


def _world(home: Path, *, sensitive: bool) -> World:
    contract: dict[str, Any] = deepcopy(plant.DATASET["contract"])
    by_name = {column["name"]: column for column in contract["columns"]}
    by_name["machine"] = {
        "name": "machine",
        "dtype": "string",
        "pattern": "[a-z0-9-]+",
        "sensitive": sensitive,
    }
    by_name["load"] |= {"sensitive": sensitive}
    return World(home, plant_components(dataset={"contract": contract | {"columns": list(by_name.values())}}))


def _written(world: World, said: str) -> dict[str, str]:
    """Place → everything a run wrote there, but for the table's own files."""
    events = [str(one) for run in world.instance.get_runs() for one in world.instance.all_logs(run.run_id)]
    places = {
        "events": "\n".join(events),
        "log": said,
        "commits": repr(list(world.platform.lake.log("main"))),
    }
    for path in world.settings.home.rglob("*"):
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
    world = _world(tmp_path / "home", sensitive=sensitive)
    assert not world.run(READINGS, partition=wanted[0], last=wanted[-1]).success
    newest = world.platform.ledger.newest_verdicts(READINGS)
    assert [day for day in wanted if newest[day].blocks] == wanted[1:]
    out, err = capfd.readouterr()
    places = _written(world, out + err)
    found = {value: [place for place, text in places.items() if value in text.lower()] for value in PLANTED}
    if sensitive:
        assert not any(found.values()), found
        assert any("(hidden)" in text for text in places.values())
        assert world.main.manifest(READINGS, wanted[0]).profile["columns"]["machine"] == {
            "nulls": 0,
            "hidden": True,
        }
    else:
        assert all(found.values()), "what is not sensitive is shown"
    assert world.main.scan(READINGS, wanted[:1]).collect()["machine"].str.contains(NAME).all()
