"""`dg scaffold … --from postgresql://…/table`: the written dataset reads the table, and no file holds the password."""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from urllib.parse import urlsplit

import click
import pytest
import yaml
from dagster.components.testing import DefsFolderSandbox, create_defs_folder_sandbox

from ml_assets.components import Dataset, TrainingPipeline
from ml_assets_tests.components.installation import Installation, component, failure_of
from ml_assets_tests.servers.sources.conftest import Warehouse

SALES = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE sales AS SELECT
    day::date AS day,
    shop AS "Shop",
    (extract(day FROM day) + 0.25)::numeric(10, 2) AS price,
    (CASE WHEN extract(dow FROM day) = 1 THEN 'sad' ELSE 'ok' END)::mood AS mood,
    ARRAY[1] AS tags,
    day::timestamp + interval '5 hours' AS opened,
    extract(day FROM day)::int AS sold
FROM generate_series('2024-02-01'::date, '2024-04-30'::date, interval '1 day') AS day, generate_series(1, 2) AS shop
"""


@pytest.fixture
def sandbox() -> Iterator[DefsFolderSandbox]:
    """A project with an empty defs folder."""
    with create_defs_folder_sandbox() as made:
        yield made


@pytest.mark.parametrize("date", ["day", "opened"])
def test_a_table_of_a_database_becomes_a_dataset(
    sandbox: DefsFolderSandbox,
    warehouse: Warehouse,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    date: str,
) -> None:
    warehouse.run(SALES)
    options = {"date": date, "time_zone": "Europe/Berlin", "entity": "Shop"}
    folder = sandbox.scaffold_component(
        TrainingPipeline, "shop", scaffold_params={"from": f"{warehouse.url}/sales", **options}
    )
    written = "".join(path.read_text() for path in folder.iterdir())
    password = urlsplit(warehouse.url).password
    assert password
    assert password not in written + "".join(capsys.readouterr())
    monkeypatch.setenv("SHOP_URL", warehouse.url)
    attributes = next(yaml.safe_load_all((folder / "defs.yaml").read_text()))["attributes"]
    installation = Installation(tmp_path / "home", components=[component(Dataset, attributes)])
    result = installation.run("datasets/shop", partition="2024-03-30", last="2024-04-01")
    assert result.success, failure_of(result)
    rows = installation.main.scan("datasets/shop", ["2024-03-30", "2024-03-31", "2024-04-01"]).collect()
    assert rows["price"].to_list() == [30.25, 30.25, 31.25, 31.25, 1.25, 1.25]
    assert rows["mood"].to_list() == ["ok"] * 4 + ["sad"] * 2
    assert "tags" not in rows.columns
    # Clocks in Berlin were set on 31 March.
    assert rows["opened"][::2].to_list() == [datetime(2024, 3, 30, 4, tzinfo=UTC), *_moments(3)]
    assert rows["known_at"][::2].to_list() == [datetime(2024, 3, 30, 23, tzinfo=UTC), *_moments(22)]


def test_whole_years_of_a_database_are_dates(
    sandbox: DefsFolderSandbox, warehouse: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warehouse.run(
        'CREATE TABLE births AS SELECT year AS "Year", (year % 7)::int AS born FROM generate_series(1990, 2020) AS year'
    )
    folder = sandbox.scaffold_component(
        TrainingPipeline, "births", scaffold_params={"from": f"{warehouse.url}/births"}
    )
    monkeypatch.setenv("BIRTHS_URL", warehouse.url)
    attributes = next(yaml.safe_load_all((folder / "defs.yaml").read_text()))["attributes"]
    installation = Installation(tmp_path / "home", components=[component(Dataset, attributes)])
    result = installation.run("datasets/births", partition="1994-01-01", last="1995-01-01")
    assert result.success, failure_of(result)
    rows = installation.main.scan("datasets/births", ["1994-01-01", "1995-01-01"]).collect()
    assert rows.select("year", "born").rows() == [(date(1994, 1, 1), 6), (date(1995, 1, 1), 0)]


def _moments(hour: int) -> list[datetime]:
    return [datetime(2024, 3, 31, hour, tzinfo=UTC), datetime(2024, 4, 1, hour, tzinfo=UTC)]


def test_a_missing_table_and_a_wrong_address_are_one_line_each(
    sandbox: DefsFolderSandbox, warehouse: Warehouse
) -> None:
    for address, said in (
        (f"{warehouse.url}/nothing", "table nothing is not in postgresql://"),
        (warehouse.url, "names no table: write postgresql://user:password@host:port/database/table"),
        ("postgresql://ada:hunter2@127.0.0.1:1/shop/sales", "did not answer"),
    ):
        with pytest.raises(click.ClickException) as refused:
            sandbox.scaffold_component(TrainingPipeline, "shop", scaffold_params={"from": address})
        assert said in refused.value.message
        assert "\n" not in refused.value.message
        assert (urlsplit(address).password or "") not in refused.value.message
