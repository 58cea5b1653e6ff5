"""Law: each value of each type of PostgreSQL and of a message of Kafka is the same in the lake, bit for bit."""

import itertools
import json
from pathlib import Path

import polars as pl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ml_assets.data.sources.protocol import SourceTable
from ml_assets.data.sources.sql_source import SqlReader, SqlSource
from ml_assets.data.validation.contract import Contract
from ml_assets_tests.components.installation import failure_of
from ml_assets_tests.servers.sources.conftest import URL_ENV, Declare, Warehouse
from ml_assets_tests.servers.sources.streams import Stream
from ml_assets_tests.sources.any_values import (
    LISTS,
    PLAIN,
    as_json,
    contract_of,
    edges,
    exact,
    frame_of,
    rows_of,
)
from ml_assets_tests.sources.sales import DAYS, SALES
from resources.platform import Platform
from resources.settings import Settings

OF_SQL = (
    "int16",
    "int32",
    "int64",
    "float32",
    "float64",
    "bool",
    "string",
    "date",
    "datetime",
    "binary",
    "list[int64]",
)
OF_JSON = (*PLAIN, *LISTS)


def _without_nul(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame without U+0000, which no text of PostgreSQL has."""
    return frame.with_columns(pl.col(pl.String).str.replace_all("\0", ""))


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_each_value_of_a_table_of_postgresql_arrives(
    warehouse: Warehouse, tmp_path: Path, data: st.DataObject
) -> None:
    name = f"any_values_{next(_NUMBERS)}"
    frame = _without_nul(frame_of(data.draw(rows_of(OF_SQL)), OF_SQL))
    warehouse.store(name, frame)
    section = SqlSource.model_validate({"kind": "sql", "url_env": URL_ENV, "table": name})
    table = SourceTable(name=SALES, contract=contract_of(OF_SQL))
    reader = SqlReader(section, table, Platform(Settings(home=tmp_path)))
    found = reader.read(None).frame
    reader.close()
    assert found.schema == frame.schema
    assert exact(found) == exact(frame)


_NUMBERS = itertools.count()


def test_each_value_of_a_message_lands(declare: Declare, stream: Stream) -> None:
    rows, of_values = edges(OF_JSON), contract_of(OF_JSON).model_dump(mode="json")
    at = {"name": "sold_at", "dtype": "datetime"}
    contract = Contract.model_validate(
        of_values | {"event_time": "sold_at", "columns": [*of_values["columns"], at]}
    )
    lines = [
        json.dumps({"sold_at": f"{DAYS[0]}T12:00:00Z"})[:-1] + ", " + line[1:]
        for line in as_json(rows, OF_JSON)
    ]
    later = lines[-1].replace(DAYS[0], DAYS[4]).replace('"id": 3', '"id": 4')
    stream.make(partitions=1)
    stream.send(line.encode() for line in [*lines, later])
    installation = declare(stream.source, contract=contract.model_dump(mode="json"))
    result = installation.run(SALES, partition=DAYS[0])
    assert result.success, failure_of(result)
    landed = installation.main.scan(SALES, [DAYS[0]]).collect()
    assert exact(landed.drop("sold_at")) == exact(frame_of(rows, OF_JSON))
