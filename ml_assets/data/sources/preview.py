"""Look at a source without ingesting: its newest rows with the contract that they suggest, and its faults."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import polars as pl

from ml_assets.data.sources.inferred_contract import as_yaml, inferred_contract, unnamed_types
from ml_assets.data.sources.kinds import AnySource, open_source
from ml_assets.data.sources.protocol import SourceTable
from ml_assets.data.sources.tabular import in_calendar
from ml_assets.data.validation.explain import shown
from resources.platform import Platform

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


def preview(section: AnySource, table: SourceTable, platform: Platform) -> Preview:
    """Read some of the newest rows of a source. Raises `SourceRefused`, and the errors of a user's function."""
    with closing(open_source(section, table, platform)) as reader:
        frame = in_calendar(reader.preview(_READ_ROWS))
    return Preview(
        rows=_masked(frame.head(_SHOWN_ROWS), table),
        read=frame.height,
        contract=inferred_contract(frame, table, getattr(section, "time_column", None)),
        without_type=unnamed_types(frame),
    )


def faults(section: AnySource, table: SourceTable, platform: Platform) -> list[str]:
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
