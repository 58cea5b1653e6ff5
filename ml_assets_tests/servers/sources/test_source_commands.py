"""`ml-assets source preview` and `check` of sources on real servers, as a person types them."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ml_assets.components import declarations
from ml_assets_tests.cli.terminal import Terminal
from ml_assets_tests.servers.sources.conftest import URL_ENV, Warehouse
from ml_assets_tests.servers.sources.object_warehouse import ACCESS, BUCKET, SECRET_ENV, ObjectWarehouse
from ml_assets_tests.sources.sales import DATASET, DAYS, SALES, declared_in, rows

SOURCES: dict[str, dict[str, Any]] = {
    "table": {"kind": "sql", "url_env": URL_ENV, "table": "sales"},
    "query": {
        "kind": "sql",
        "url_env": URL_ENV,
        "query": "SELECT * FROM sales WHERE sold_at >= :first AND sold_at < :end",
    },
    "s3": {"kind": "s3", "path": f"s3://{BUCKET}/sales-%Y-%m-%d.parquet", **ACCESS},
    "delta": {"kind": "delta", "path": f"s3://{BUCKET}/sales", **ACCESS},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the declarations."""
    monkeypatch.setattr(declarations, "DEFS", tmp_path / "defs")
    return tmp_path / "defs"


def test_previews_and_checks_of_each_kind(
    folder: Path,
    tmp_path: Path,
    warehouse: Warehouse,
    bucket: ObjectWarehouse,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A contract is inferred, pasted, checked; then each source breaks and the check says how."""
    warehouse.store("sales", rows(*DAYS))
    for day in DAYS:
        bucket.put_frame(f"sales-{day}.parquet", rows(day))
    bucket.write_delta("sales", rows(*DAYS))
    terminal = Terminal(tmp_path / "home")
    for name, source in SOURCES.items():
        declared_in(folder, **{name: {"source": source, "contract": None}})
        said = terminal("source", "preview", name)
        assert said.status == 0, said.err
        assert "Größe L" in said.out
        pasted = yaml.safe_load(said.out.partition("check:\n")[2])["contract"]
        assert [one["name"] for one in pasted["columns"]] == [
            one["name"] for one in DATASET["contract"]["columns"]
        ]
        assert json.loads(terminal("source", "preview", name, "--json").out)["contract"] == pasted
        declared_in(folder, **{name: {"source": source}})
    said = terminal("source", "check")
    assert said.out.splitlines() == [
        "ok    datasets/delta (delta)",
        "ok    datasets/query (sql)",
        "ok    datasets/s3 (s3)",
        "ok    datasets/table (sql)",
    ]
    warehouse.run("ALTER TABLE sales RENAME gift TO present")
    monkeypatch.setenv(SECRET_ENV, "a-wrong-secret")
    said = terminal("source", "check")
    assert said.status == 1
    assert "a-wrong-secret" not in said.out
    begins = (
        "datasets/delta: s3:",
        "datasets/query: the result of",
        "datasets/s3: s3:",
        "datasets/table: sales",
    )
    for line, words in zip(said.out.splitlines(), (*begins, "4 of"), strict=True):
        assert line.removeprefix("FAIL  ").startswith(words)
    assert said.out.count("Check source.path, and the credentials and rights of its reader") == 2
    assert said.out.count("added: present (bool); removed: gift (bool)") == 2
    assert terminal("source", "preview", "s3").status == 1


def test_types_that_no_contract_has_are_named(folder: Path, tmp_path: Path, warehouse: Warehouse) -> None:
    warehouse.run(
        "CREATE TABLE sales AS SELECT 1 AS id, 1.5::numeric AS price, now()::timestamp AS local, '{}'::json AS more"
    )
    declared_in(folder, sales={"source": SOURCES["table"], "contract": None, "partitions": None})
    said = Terminal(tmp_path / "home")("source", "preview", SALES)
    assert said.status == 0, said.err
    assert (
        "    # local is datetime[us, no time zone], which no contract has: cast it at the source" in said.out
    )
    assert "    # price is object, which no contract has: cast it at the source" in said.out
    pasted = yaml.safe_load(said.out.partition("check:\n")[2])["contract"]
    assert pasted == {"columns": [{"name": "id", "dtype": "int32"}]}
