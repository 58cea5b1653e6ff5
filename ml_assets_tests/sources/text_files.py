"""Text files with a column or two, as a file source reads them by a contract of these columns."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from ml_assets.data.sources.file_source import FileReader, FileSource
from ml_assets.data.sources.protocol import SourceTable
from ml_assets.data.validation.contract import Contract
from ml_assets_tests.sources.sales import SALES
from resources.platform import Platform
from resources.settings import Settings


def read(
    folder: Path, content: str | bytes, suffix: str, columns: Mapping[str, str], **source: Any
) -> pl.DataFrame:
    """Write a file and return its rows; see `read_file`."""
    file = folder / f"rows.{suffix}"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_file(file, columns, **source)


def read_file(file: Path, columns: Mapping[str, str], **source: Any) -> pl.DataFrame:
    """Return the rows of a file with the columns `id` and `columns`, which are name → type."""
    types = [{"name": name, "dtype": dtype, "nullable": True} for name, dtype in columns.items()]
    contract = Contract.model_validate({"columns": [{"name": "id", "dtype": "int64"}, *types]})
    return reader_of_file(file, contract, **source).read(None).frame


def reader_of_file(file: Path, contract: Contract | None, **source: Any) -> FileReader:
    """Return the reader of a file, with further keys of its section."""
    table = SourceTable(name=SALES, contract=contract)
    platform = Platform(Settings.model_validate({"home": file.parent}))
    section = FileSource.model_validate({"kind": "file", "path": str(file), **source})
    return FileReader(section, table, platform)
