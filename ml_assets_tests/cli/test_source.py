"""`ml-assets source preview` and `check`, for the kinds that need no server, as a person types them."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from ml_assets.components import declarations
from ml_assets.components.documents import attribute_faults
from ml_assets.components.specs import DatasetSpec
from ml_assets_tests.cli.terminal import Terminal
from ml_assets_tests.sources import sales
from ml_assets_tests.sources.sales import DATASET, DAYS, SALES, declared_in, rows

Declare = Callable[..., None]


@pytest.fixture
def declare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Declare:
    """Declare datasets in a folder of their own: their names → changes of the attributes of `sales`."""
    folder = tmp_path / "defs"
    monkeypatch.setattr(declarations, "DEFS", folder)

    return partial(declared_in, folder)


@pytest.fixture(params=["python", "parquet", "csv", "jsonl", "delta"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """A source of each kind with the same rows."""
    frame, kind = rows(*DAYS), request.param
    if kind == "python":
        return {"function": f"{sales.__name__}.read"}
    if kind == "delta":
        frame.write_delta(str(tmp_path / "sales"))
        return {"kind": "delta", "path": str(tmp_path / "sales")}
    path = tmp_path / f"sales-1.{kind}"
    if kind == "parquet":
        frame.write_parquet(path)
    elif kind == "csv":
        frame.write_csv(path)
    else:
        texts = pl.col("sold_at", "changed_at").dt.strftime("%Y-%m-%dT%H:%M:%S%.6f%z")
        frame.with_columns(texts).write_ndjson(path)
    return {"kind": "file", "path": str(tmp_path / f"sales-*.{kind}")}


@pytest.mark.parametrize("contract", [None, DATASET["contract"]])
def test_the_printed_contract_of_each_kind_accepts_its_rows(
    terminal: Terminal, declare: Declare, source: dict[str, Any], contract: dict[str, Any] | None
) -> None:
    declare(sales={"source": source, "contract": contract})
    said = terminal("source", "preview", SALES)
    assert said.status == 0, said.err
    table, _, pasted = said.out.partition("Inferred from ")
    count, _, pasted = pasted.partition("\n")
    shown = len(rows(DAYS[0])) if "function" in source else 10
    assert table.count("2024-03-") >= shown
    assert "to paste below attributes: and to check:" in count
    written = yaml.safe_load(pasted)["contract"]
    assert written["event_time"] == "sold_at"
    assert written["primary_key"] == ["sale"]
    if "jsonl" not in str(source) and (contract or "csv" not in str(source)):  # texts tell no widths
        assert written["columns"] == DATASET["contract"]["columns"]
    declare(sales={"source": source, "contract": {**written, "event_time_zone": "America/New_York"}})
    assert terminal("source", "check").out == f"ok    {SALES} ({source.get('kind', 'python')})\n"


def test_a_contract_without_columns_is_no_hindrance(terminal: Terminal, declare: Declare) -> None:
    for contract in ({}, {"columns": []}, {"primary_key": ["sale"]}):
        declare(sales={"source": {"function": f"{sales.__name__}.read"}, "contract": contract})
        said = terminal("source", "preview", SALES)
        assert "      - {name: sale, dtype: int64}\n" in said.out, said.err


def test_json_holds_rows_and_contract_and_hides_sensitive_values(
    terminal: Terminal, declare: Declare, tmp_path: Path
) -> None:
    odd = pl.DataFrame(
        {
            "id": [1, 2],
            "share": [float("nan"), 0.5],
            "picture": [b"\xff", None],
            "when": pl.Series([0, 4 * 10**17], dtype=pl.Datetime("us", "UTC")),
            "no": ["a", "b"],
            "local": pl.Series([0, 1], dtype=pl.Datetime("us")),
        }
    )
    odd.write_parquet(tmp_path / "odd.parquet")
    columns = [{"name": "id", "dtype": "int64"}, {"name": "no", "dtype": "string", "sensitive": True}]
    declare(
        sales={
            "source": {"kind": "file", "path": str(tmp_path / "odd.parquet")},
            "partitions": None,
            "contract": {"columns": columns},
        }
    )
    said = json.loads(terminal("source", "preview", "sales", "--json").out)
    assert (
        said["rows"][0] | {"picture": ""}
        == {
            "id": 1,
            "share": "(hidden)",  # as for each column that the contract does not know, because it may be a renamed one
            "picture": "",
            "when": "(hidden)",
            "no": "(hidden)",
            "local": "(hidden)",
        }
    )
    assert said["without_type"] == {"local": "datetime[us, no time zone]"}
    declare(sales={"source": {"kind": "file", "path": str(tmp_path / "odd.parquet")}, "contract": None})
    said = json.loads(terminal("source", "preview", "sales", "--json").out)
    assert said["rows"][0]["share"] is None
    assert said["rows"][1]["when"] is None  # no calendar has the year 14645
    assert [column["name"] for column in said["contract"]["columns"]] == [
        "id",
        "share",
        "picture",
        "when",
        "no",
    ]
    pasted = terminal("source", "preview", "sales").out.partition("check:\n")[2]
    assert "# local is datetime[us, no time zone], which no contract has: cast it at the source" in pasted
    contract = yaml.safe_load(pasted)["contract"]
    assert contract == said["contract"]
    assert not attribute_faults(
        DatasetSpec, DATASET | {"source": {"function": "json.loads"}, "contract": contract}
    )


def test_check_names_each_fault_of_each_source(terminal: Terminal, declare: Declare, tmp_path: Path) -> None:
    rows(*DAYS).rename({"gift": "present"}).drop("sold_at").write_delta(str(tmp_path / "old"))
    declare(
        a_good={"source": {"function": f"{sales.__name__}.read"}},
        b_moved={"source": {"kind": "file", "path": str(tmp_path / "%Y-%m-%d.csv")}},
        c_old={"source": {"kind": "delta", "path": str(tmp_path / "old"), "watermark_column": "price"}},
        d_draft={"source": {"function": f"{sales.__name__}.read"}, "contract": None},
        e_typo={"source": {"kind": "delta", "pth": "x"}},
        f_unset={"source": {"kind": "sql", "url_env": "NOWHERE_URL", "table": "sales"}},
        g_broken={"source": {"function": f"{sales.__name__}.read", "latest": "zoneinfo.available_timezones"}},
    )
    said = terminal("source", "check")
    assert said.status == 1
    lines = said.out.splitlines()
    expected = [
        "ok    datasets/a_good (python)",
        f"FAIL  datasets/b_moved: no file matches {tmp_path}/%Y-%m-%d.csv: correct source.path, or wait for a file",
        "FAIL  datasets/c_old: .*added: present .*removed: sold_at .*Change the contract, or restore the columns",
        "FAIL  datasets/c_old: time_column 'sold_at' of .* is missing",
        "FAIL  datasets/c_old: watermark_column 'price' is float64: name a column of the contract of type datetime",
        "FAIL  datasets/d_draft: the contract has no columns.* ml-assets source preview datasets/d_draft prints",
        "FAIL  datasets/e_typo: .*defs.yaml:.* attributes.source.pth: unknown key 'pth': did you mean 'path'",
        "FAIL  datasets/f_unset: the environment variable NOWHERE_URL is not set",
        "FAIL  datasets/g_broken: .*zoneinfo.available_timezones",
        "6 of 7 sources failed; each FAIL line names the remedy.",
    ]
    assert len(lines) == len(expected), said.out
    for line, words in zip(lines, expected, strict=True):
        for part in words.split(".*"):
            assert part in line
    assert terminal("source", "check", "a_good").out == "ok    datasets/a_good (python)\n"


@pytest.mark.parametrize("command", ["preview", "check"])
def test_a_wrong_table_or_declaration_is_one_sentence(
    terminal: Terminal, declare: Declare, command: str
) -> None:
    declare(sales={"source": {"kind": "csv", "path": "x"}})
    said = terminal("source", command, "datasets/sale")
    assert (said.status, said.err) == (1, "Error: no dataset is named 'sale'; there are: datasets/sales\n")
    said = terminal("source", command, SALES)
    assert said.status == 1
    assert "attributes.source: kind 'csv' should be" in said.err
