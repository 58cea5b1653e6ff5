"""Look at a source without ingesting: its newest rows with the contract that they suggest, and its faults.

The contract is YAML to paste into a `defs.yaml` and to correct by hand.
"""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import polars as pl
import yaml

from ml_assets.data.sources.kinds import open_source
from ml_assets.data.sources.protocol import SourceSection, SourceTable
from ml_assets.data.sources.tabular import in_calendar
from ml_assets.data.validation.column_types import is_nested, polars_type, type_name
from ml_assets.data.validation.explain import shown
from resources.platform import Platform

_KEY_TYPES = ("int", "uint", "string", "date", "datetime")
"""Types of a column that may identify a row by itself; floats and booleans never do."""


def inferred_contract(frame: pl.DataFrame, table: SourceTable, event_time: str | None) -> Mapping[str, Any]:
    """Return the `contract` section for the columns of `frame`, as values of YAML.

    A column is nullable if some of these rows have no value, and the first column without a repeated value is the
    primary key. `event_time` is the column that the source section names; by default the contract's, then the first
    moment or date. Columns of a type that no contract has are left out; see `unnamed_types`.
    """
    named = {name: _nearest(dtype) for name, dtype in frame.schema.items()}
    columns = [
        {"name": name, "dtype": dtype} | ({"nullable": True} if _has_gaps(frame[name]) else {})
        for name, dtype in named.items()
        if dtype is not None
    ]
    contract: dict[str, Any] = {}
    if key := next(
        (name for name, dtype in named.items() if dtype and _identifies(frame[name], dtype)), None
    ):
        contract["primary_key"] = [key]
    given = event_time or table.event_time
    dated = [name for kind in ("datetime", "date") for name, dtype in named.items() if dtype == kind]
    if named.get(given or "") in ("datetime", "date"):
        contract["event_time"] = given
    elif dated:
        contract["event_time"] = dated[0]
    if "event_time" in contract and table.time_zone != "UTC":
        contract["event_time_zone"] = table.time_zone
    return contract | {"columns": columns}


def unnamed_types(frame: pl.DataFrame) -> Mapping[str, str]:
    """Return column → type for the columns of `frame` whose type no contract has."""
    return {name: type_name(dtype) for name, dtype in frame.schema.items() if _nearest(dtype) is None}


def as_yaml(contract: Mapping[str, Any]) -> str:
    """Return a `contract` section as it stands below `attributes:` of a `defs.yaml`, one line per column."""
    lines = ["  contract:"]
    for name, value in contract.items():
        if name == "columns":
            lines += ["    columns:", *(f"      - {_inline(column)}" for column in value)]
        else:
            lines.append(f"    {name}: {_inline(value)}")
    return "\n".join(lines)


def _inline(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**6)
    return text.removesuffix("\n").removesuffix("\n...")


def _nearest(dtype: pl.DataType) -> str | None:
    """Return the contract's type for a type of a source; None if there is none without a cast at the source."""
    if dtype == pl.Null():
        return "string"
    if isinstance(dtype, pl.Datetime) and dtype.time_zone is not None:
        return "datetime"
    if isinstance(dtype, pl.Duration):
        return "duration"
    if isinstance(dtype, pl.Enum):
        return "categorical"
    name = type_name(dtype)
    try:
        polars_type(name)
    except ValueError:
        return None
    return name


def _has_gaps(values: pl.Series) -> bool:
    return values.null_count() > 0 or (values.dtype.is_float() and bool(values.is_nan().any()))


def _identifies(values: pl.Series, dtype: str) -> bool:
    is_key = dtype.startswith(_KEY_TYPES) and not is_nested(dtype) and values.dtype != pl.Null()
    return is_key and len(values) > 1 and values.null_count() == 0 and not values.is_duplicated().any()


_SHOWN_ROWS = 10
_READ_ROWS = 1000
"""Rows from which a contract is inferred; ten would hide most columns that are sometimes null."""


@dataclass(frozen=True, kw_only=True)
class Preview:
    """Some of the newest rows of a source."""

    rows: pl.DataFrame
    """Up to ten rows with the types of the source; values of sensitive columns are hidden."""
    read: int
    """Number of rows behind the contract."""
    contract: Mapping[str, Any]
    """Contract that these rows suggest, as values of YAML."""
    without_type: Mapping[str, str]
    """Column → type, for columns of a type that no contract has."""

    @property
    def contract_yaml(self) -> str:
        """The contract as it stands below `attributes:`."""
        return as_yaml(self.contract)


def preview(section: SourceSection, table: SourceTable, platform: Platform) -> Preview:
    """Read some of the newest rows of a source. Raises `SourceRefused`, and the errors of a user's function."""
    with closing(open_source(section, table, platform)) as reader:
        frame = in_calendar(reader.preview(_READ_ROWS))
    return Preview(
        rows=_masked(frame.head(_SHOWN_ROWS), table),
        read=frame.height,
        contract=inferred_contract(frame, table, getattr(section, "time_column", None)),
        without_type=unnamed_types(frame),
    )


def faults(section: SourceSection, table: SourceTable, platform: Platform) -> list[str]:
    """Return a sentence with a remedy for each fault of a source."""
    try:
        with closing(open_source(section, table, platform)) as reader:
            found = list(reader.check())
    except Exception as error:  # a user's function may raise anything
        is_ours = type(error).__module__.startswith(("ml_assets.", "resources."))
        return [str(error) if is_ours else f"{type(error).__name__}: {error}"]
    if table.contract is None:
        found.append(
            f"the contract has no columns, so nothing can be ingested: paste those that ml-assets source preview "
            f"{table.name} prints"
        )
    return found


def _masked(frame: pl.DataFrame, table: SourceTable) -> pl.DataFrame:
    contract = table.contract
    if contract is None:
        return frame
    return frame.with_columns(shown(frame[name], contract) for name in frame.columns if contract.hides(name))
