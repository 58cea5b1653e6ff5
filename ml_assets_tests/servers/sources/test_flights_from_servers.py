"""The demo's tables from real servers give the demo's training set, bit for bit.

The sections are those of docs/how-to/sources.md. A window of nine days in January stands for the demo's year.
"""

import io
from collections.abc import Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from ml_assets.components import Dataset, FeatureTable, TrainingPipeline
from ml_assets.components.base import SpecComponent
from ml_assets.components.metadata import declared_tables
from ml_assets.data.snapshots.split_reader import Snapshot
from ml_assets.defs.flights import source
from ml_assets.foundation.checkout import ROOT
from ml_assets.model.steps.snapshot import build_training_set
from ml_assets.model.steps.window import validate_inputs
from ml_assets_tests.components.installation import Installation, component, failure_of
from ml_assets_tests.defs.flights.flights_specs import attributes
from ml_assets_tests.servers.sources.conftest import Warehouse
from ml_assets_tests.servers.sources.object_warehouse import ObjectWarehouse
from ml_assets_tests.servers.sources.streams import Stream, messages

DAYS = [(date(2013, 1, 1) + timedelta(days=n)).isoformat() for n in range(9)]
WINDOW = {"train": 5, "validation": 2, "holdout": 2}
PAGE = ROOT / "docs" / "how-to" / "sources.md"


def _sections() -> dict[str, dict[str, Any]]:
    """Return the example on the page: dataset → changed attributes."""
    _, _, example = PAGE.read_text().partition("## Example: the flights from servers")
    documents = yaml.safe_load_all(example.partition("```yaml\n")[2].partition("```")[0])
    return {one.pop("name"): one for one in documents}


def _components(changes: Mapping[str, Mapping[str, Any]]) -> list[SpecComponent]:
    tables = [
        component(Dataset, attributes(name), **changes.get(name, {}))
        for name in ("flights", "weather", "planes", "airports")
    ]
    model = component(
        TrainingPipeline,
        attributes("flight_delay"),
        window=WINDOW,
        partitions={"cadence": "daily", "start": DAYS[-1], "end": DAYS[-1]},
    )
    return [*tables, component(FeatureTable, attributes("flight_departures")), model]


def _made(home: Path, changes: Mapping[str, Mapping[str, Any]]) -> tuple[Installation, Snapshot]:
    """Return an installation with these sections, all its tables materialized, and its training set."""
    made = Installation(home, components=_components(changes))
    result = made.run("datasets/planes", "datasets/airports")
    assert result.success, failure_of(result)
    for table in ("datasets/flights", "datasets/weather", "features/flight_departures"):
        result = made.run(table, partition=DAYS[0], last=DAYS[-1])
        assert result.success, failure_of(result)
    (spec,) = (one.spec for one in _components(changes) if isinstance(one, TrainingPipeline))
    validated = validate_inputs(spec, made.platform, declared_tables(made.defs), DAYS[-1], DAYS)
    return made, build_training_set(spec, made.platform, validated, None, into=home / "snapshots")


def _load(warehouse: Warehouse, bucket: ObjectWarehouse, stream: Stream) -> None:
    """Store the demo's rows where the sections look for them, in another order."""
    flights = pl.concat(source.read_flights(date.fromisoformat(day)) for day in reversed(DAYS))
    warehouse.store("flights", flights.sample(fraction=1.0, shuffle=True, seed=1))
    csv = io.BytesIO()
    source.read_planes().write_csv(csv, null_value="NA")
    bucket.put("register/planes.csv", csv.getvalue())
    bucket.write_delta("airports", source.read_airports()[::-1])
    # The tenth day takes the watermark past the ninth. Reports of an airport come in order, those of airports do not.
    last = date.fromisoformat(DAYS[-1]) + timedelta(days=1)
    reports = pl.concat(source.read_weather(date.fromisoformat(day)) for day in (*DAYS, last.isoformat()))
    stream.make(3)
    for partition, origin in enumerate(("EWR", "JFK", "LGA")):
        stream.send(messages(reports.filter(origin=origin).sort("observed_at")), partition)


def test_tables_from_servers_give_the_training_set_of_the_demo(
    tmp_path: Path,
    warehouse: Warehouse,
    bucket: ObjectWarehouse,
    stream: Stream,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in bucket.server.environment.items():  # the sections of the page name no credentials
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", bucket.server.environment["AWS_ENDPOINT_URL"])
    _load(warehouse, bucket, stream)
    embedded, expected = _made(tmp_path / "embedded", {})
    sections = _sections()
    sections["weather"]["source"]["topic"] = stream.topic
    served, found = _made(tmp_path / "served", sections)
    assert expected.rows("train") > 2000
    tables = [f"datasets/{name}" for name in ("flights", "weather", "planes", "airports")]
    for table in (*tables, "features/flight_departures"):
        assert served.main.digests(table) == embedded.main.digests(table), table
        assert served.main.digests(table)
    assert found.digest == expected.digest
    assert [one.sha256 for one in found.shards] == [one.sha256 for one in expected.shards]
    assert found.fitted_digest == expected.fitted_digest
    assert served.main.manifest("datasets/flights", DAYS[0]).code_version != (
        embedded.main.manifest("datasets/flights", DAYS[0]).code_version
    )  # they came from other sources
