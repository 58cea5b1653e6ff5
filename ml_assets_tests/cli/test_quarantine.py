"""`ml-assets quarantine` lists, shows and readmits rows that a table set aside."""

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

from ml_assets.components import Dataset
from ml_assets_tests.cli.terminal import Terminal

SALES, WEEK, NEXT_WEEK = "datasets/sales", "2023-01-09", "2023-01-16"


@pytest.fixture
def lenient(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Declare that sales set bad rows aside, and with True that their units may be negative."""
    load = Dataset.load.__func__

    def declare(negative: bool) -> None:
        def edited(cls: type[Dataset], spec: Any, context: Any) -> Dataset:
            if spec.name == "sales":
                facts = spec.model_dump()
                facts |= {"on_bad_rows": "quarantine", "quarantine": {"limit": 0.5}}
                for column in facts["contract"]["columns"]:
                    if column["name"] == "units" and negative:
                        column["ge"] = None
                spec = type(spec).model_validate(facts)
            return load(cls, spec, context)

        monkeypatch.setattr(Dataset, "load", classmethod(edited))

    declare(False)
    return declare


def test_rows_in_quarantine_are_listed_shown_and_readmitted(
    terminal: Terminal, lenient: Callable[[bool], None], wrong_sales: dict[str, pl.Expr]
) -> None:
    wrong_sales[WEEK] = (
        pl.when(pl.int_range(pl.len()) < 2).then(-5).otherwise("units").cast(pl.Int32).alias("units")
    )
    launched = terminal("launch", SALES, WEEK)
    assert launched.status == 0, launched.err
    listed = terminal("quarantine", "list")
    assert listed.out == f"{SALES} {WEEK}  2 rows: out_of_range 2\n"
    shown = terminal("quarantine", "show", SALES, WEEK, "--rows", "1")
    assert shown.out.startswith(f"{SALES} {WEEK}: 2 rows in quarantine")
    assert "out_of_range of units: expected at least 0" in shown.out
    unchanged = terminal("quarantine", "readmit", SALES)
    assert unchanged.out == f"{SALES} {WEEK}: 0 rows readmitted, 2 still in quarantine\n", "nothing is stale"
    lenient(True)
    readmitted = terminal("quarantine", "readmit", SALES, WEEK)
    assert readmitted.out.startswith(f"{SALES} {WEEK}: 2 rows readmitted, 0 still in quarantine"), (
        readmitted.err
    )
    assert terminal("quarantine", "list", SALES).out == "No rows are in quarantine.\n"
    assert "has no quarantined rows" in terminal("quarantine", "show", SALES, WEEK).err
    for command in (("quarantine", "list"), ("acceptances",)):
        said = terminal(*command, "datasets/sale")
        assert said.status == 1
        assert "no table is named 'datasets/sale': did you mean 'datasets/sales'?" in said.err
    assert terminal("acceptances", SALES).out == f"No partition of {SALES} was accepted.\n"


def test_a_partition_that_is_refused_does_not_stop_the_others(
    terminal: Terminal, lenient: Callable[[bool], None], wrong_sales: dict[str, pl.Expr]
) -> None:
    def negative(rows: int) -> pl.Expr:
        return (
            pl.when(pl.int_range(pl.len()) < rows).then(-5).otherwise("units").cast(pl.Int32).alias("units")
        )

    wrong_sales |= {WEEK: negative(2), NEXT_WEEK: negative(1)}
    assert terminal("launch", SALES, f"{WEEK}..{NEXT_WEEK}").status == 0
    wrong_sales[WEEK] = negative(1_000_000)
    assert terminal("launch", SALES, WEEK).status == 1, "all rows are bad: rejected"
    lenient(True)
    said = terminal("quarantine", "readmit", SALES)
    assert said.status == 1
    assert said.out.startswith(f"{SALES} {NEXT_WEEK}: 1 row readmitted, 0 still in quarantine")
    assert f"the newest verdict on {SALES} {WEEK} is a rejection of other rows" in said.err
