"""A contract refuses what makes no sense, and its digests change with its meaning alone."""

from datetime import date
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from ml_assets.data.validation.column_types import POLARS_TYPES, schema_hash, schema_of
from ml_assets.data.validation.contract import Contract, SchemaDrift, schema_drift
from ml_assets_tests.validation.flights_table import contract, day

TYPES = st.sampled_from(sorted(POLARS_TYPES))
NAMES = st.text(min_size=1, max_size=4).filter(lambda name: not name.startswith("_"))
SCHEMAS = st.dictionaries(NAMES, TYPES, min_size=1, max_size=8)


def of(*columns: dict[str, Any], **more: Any) -> Contract:
    return Contract.model_validate({"columns": list(columns), **more})


def frame_of(schema: dict[str, str]) -> pl.DataFrame:
    return pl.DataFrame(schema={name: POLARS_TYPES[dtype] for name, dtype in schema.items()})


@pytest.mark.parametrize(
    ("columns", "more", "message"),
    [
        ([{"name": "x", "dtype": "int64", "nulable": True}], {}, "did you mean 'nullable'"),
        ([{"name": "x", "dtype": "int"}], {}, "int64"),
        ([{"name": "x", "names": ["y"], "dtype": "int64"}], {}, "either `name` or `names`"),
        ([{"dtype": "int64"}], {}, "either `name` or `names`"),
        ([{"name": "x", "dtype": "string", "ge": 0}], {}, "are for numbers"),
        ([{"name": "x", "dtype": "binary", "ge": 0}], {}, "are for numbers"),
        ([{"name": "x", "dtype": "binary", "unique": True}], {}, "`unique` is not for binary"),
        ([{"name": "x", "dtype": "binary"}], {"primary_key": ["x"]}, "cannot be binary: x"),
        ([{"name": "x", "dtype": "int64", "ge": 2, "le": 1}], {}, "no number would pass"),
        ([{"name": "x", "dtype": "string", "isin": [1, 2]}], {}, "quote strings"),
        ([{"name": "x", "dtype": "int64", "isin": [True]}], {}, "holds True"),
        ([{"name": "x", "dtype": "int64", "isin": []}], {}, "would reject every row"),
        ([{"name": "x", "dtype": "float64", "isin": [1]}], {}, "not for float64"),
        ([{"name": "x", "dtype": "string", "pattern": "("}], {}, "not a regular expression"),
        ([{"name": "x", "dtype": "int64", "pattern": "1"}], {}, "is for strings"),
        ([{"name": "x", "dtype": "int64"}, {"names": ["x", "y"], "dtype": "bool"}], {}, "declared twice: x"),
        ([{"name": "x", "dtype": "int64"}], {"primary_key": ["z"]}, "not a column of the contract"),
        (
            [{"name": "x", "dtype": "int64", "nullable": True}],
            {"primary_key": ["x"]},
            "cannot be nullable: x",
        ),
        ([{"name": "x", "dtype": "int64"}], {"event_time": "x"}, "must be of type datetime or date"),
        ([{"name": "x", "dtype": "int64"}], {"event_time_zone": "America/Gotham"}, "is not a time zone"),
        ([{"name": "x", "dtype": "int64"}], {"max_future_hours": -1}, "greater than or equal to 0"),
        ([], {}, "at least one column"),
    ],
)
def test_contract_that_makes_no_sense_is_refused_with_the_reason(
    columns: list[dict[str, Any]], more: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        of(*columns, **more)


def test_several_columns_share_their_rules() -> None:
    shared = of({"names": ["x", "y"], "dtype": "int8", "ge": 3})
    assert [(name, column.ge) for name, column in shared.by_name.items()] == [("x", 3), ("y", 3)]


def test_digest_ignores_grouping_and_words_but_no_rule() -> None:
    one = of({"names": ["x", "y"], "dtype": "int8", "ge": 3})
    apart = of(
        {"name": "x", "dtype": "int8", "ge": 3}, {"name": "y", "dtype": "int8", "ge": 3, "description": "Y"}
    )
    assert one.contract_digest == apart.contract_digest
    stricter = of({"names": ["x", "y"], "dtype": "int8", "ge": 4})
    keyed = of({"names": ["x", "y"], "dtype": "int8", "ge": 3}, primary_key=["x"])
    assert len({one.contract_digest, stricter.contract_digest, keyed.contract_digest}) == 3


@given(st.permutations(["a", "b", "c"]), st.sampled_from([(1, 2), (1.0, 2), (1, 2.0), (1.0, 2.0)]))
def test_equal_contracts_have_equal_digests(legal: list[str], bounds: tuple[float, float]) -> None:
    def made(isin: list[str], low: float, high: float) -> Contract:
        return of(
            {"name": "x", "dtype": "float64", "ge": low, "le": high},
            {"name": "n", "dtype": "int64", "ge": low},
            {"name": "s", "dtype": "string", "isin": isin},
        )

    digest = made(["a", "b", "c"], 1, 2).contract_digest
    assert made(legal, *bounds).contract_digest == digest
    assert made([*legal, legal[0]], *bounds).contract_digest == digest
    assert made(legal[1:], *bounds).contract_digest != digest
    assert made(legal, bounds[0], 2.5).contract_digest != digest


def test_schema_hash_depends_on_names_types_and_order_alone() -> None:
    one = of({"name": "x", "dtype": "int8"}, {"name": "y", "dtype": "string"})
    ranged = of({"name": "x", "dtype": "int8", "ge": 1}, {"name": "y", "dtype": "string"})
    swapped = of({"name": "y", "dtype": "string"}, {"name": "x", "dtype": "int8"})
    retyped = of({"name": "x", "dtype": "int16"}, {"name": "y", "dtype": "string"})
    assert one.schema_hash == ranged.schema_hash
    assert len({one.schema_hash, swapped.schema_hash, retyped.schema_hash}) == 3


def test_schema_hash_is_stable_across_versions_of_everything() -> None:
    known = "06600537283b4cd2de326e9e7afb77d5f3c24a43009fa0ffa0de6e7adcbda6c7"
    assert schema_hash([("x", "int8"), ("größe", "float64")]) == known


@settings(max_examples=40)
@given(SCHEMAS)
def test_frame_has_the_schema_of_the_contract_it_was_made_for(schema: dict[str, str]) -> None:
    asked = of(*({"name": name, "dtype": dtype} for name, dtype in schema.items()))
    frame = frame_of(schema)
    assert schema_of(frame) == schema_of(frame.lazy()) == asked.stored_schema
    assert schema_hash(schema_of(frame)) == asked.schema_hash
    assert not schema_drift(asked, frame)


@given(SCHEMAS, SCHEMAS)
def test_schema_drift_names_every_difference_once(expected: dict[str, str], found: dict[str, str]) -> None:
    drift = schema_drift(list(expected.items()), frame_of(found))
    assert {name for name, _ in drift.added} == found.keys() - expected.keys()
    assert {name for name, _ in drift.removed} == expected.keys() - found.keys()
    both = expected.keys() & found.keys()
    assert {name for name, _, _ in drift.changed} == {name for name in both if expected[name] != found[name]}
    back = schema_drift(list(found.items()), frame_of(expected))
    assert back == SchemaDrift(
        added=tuple((name, expected[name]) for name in expected if name not in found),
        removed=tuple((name, found[name]) for name in found if name not in expected),
        changed=tuple(
            (name, found[name], expected[name])
            for name in found
            if name in both and (found[name] != expected[name])
        ),
    )


def test_types_outside_the_vocabulary_have_telling_names() -> None:
    frame = pl.DataFrame(
        schema={
            "naive": pl.Datetime("us"),
            "nanos": pl.Datetime("ns", "UTC"),
            "many": pl.List(pl.Int64),
            "nothing": pl.Null,
        }
    )
    assert [name for _, name in schema_of(frame)] == [
        "datetime[us, no time zone]",
        "datetime[ns, UTC]",
        "list[int64]",
        "null",
    ]


def test_columns_come_into_stored_order_only_where_all_are_there() -> None:
    frame = day(date(2013, 1, 1))
    turned = frame.select(frame.columns[::-1])
    assert contract().in_order(turned).columns == list(contract().names)
    assert contract().in_order(turned.drop("tail")).columns == turned.drop("tail").columns


def test_a_sensitive_column_is_another_contract_and_no_event_time() -> None:
    plain, sensitive = ({"name": "x", "dtype": "string", "sensitive": hidden} for hidden in (False, True))
    # What was published before is to be made anew.
    assert of(plain).contract_digest != of(sensitive).contract_digest
    assert [of(sensitive).hides(name) for name in ("x", "renamed")] == [True, True]
    assert [of(plain).hides(name) for name in ("x", "renamed")] == [False, False]
    with pytest.raises(ValidationError, match=r"`event_time` 'at' .*sensitive"):
        of({"name": "at", "dtype": "datetime", "sensitive": True}, event_time="at")
