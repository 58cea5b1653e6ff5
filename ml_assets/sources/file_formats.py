"""Content of a file as a frame: Parquet, CSV or JSON lines, with the contract's types where the format has none."""

import io
from typing import Literal

import polars as pl

from ml_assets.validation.column_types import polars_type
from ml_assets.validation.contract import Contract

FileFormat = Literal["parquet", "csv", "jsonl"]
_NULLS = ("", "NA", "NULL", "null")
_GUESSED = {
    r"^\d{4}-\d{2}-\d{2}$": pl.Date(),
    r"^\d{4}-\d{2}-\d{2}[T ].*(Z|[+-]\d{2}:?\d{2})$": pl.Datetime("us", "UTC"),
}
"""Form of the texts of a column → its type, for a table without a contract."""


def parsed(content: bytes, form: FileFormat, separator: str, contract: Contract | None) -> pl.DataFrame:
    """Return the rows of a file.

    Texts of CSV and JSON become moments, dates and bytes where the contract says so; without a contract, where all
    values are written as dates or as moments with an offset. Raises polars' errors.
    """
    if form == "parquet":
        return pl.read_parquet(io.BytesIO(content))
    types = {name: polars_type(one.dtype) for name, one in contract.by_name.items()} if contract else {}
    if form == "csv":
        # Moments are texts with an offset, which polars does not read as UTC by itself.
        texts = {name: pl.String() if isinstance(one, pl.Datetime) else one for name, one in types.items()}
        frame = pl.read_csv(
            content,
            separator=separator,
            schema_overrides=texts,
            null_values=list(_NULLS),
            infer_schema_length=None,
        )
    else:
        # Without the types, a column that is null in the first rows would be read as null.
        frame = pl.read_ndjson(content, infer_schema_length=None)
    if contract is None:
        types = {name: dtype for name in frame.columns if (dtype := _guessed(frame[name])) is not None}
    texts = [name for name, dtype in types.items() if _is_text(frame, name, dtype)]
    return frame.with_columns(_from_text(name, types[name]) for name in texts)


def _is_text(frame: pl.DataFrame, name: str, dtype: pl.DataType) -> bool:
    return frame.schema.get(name) == pl.String and isinstance(dtype, pl.Datetime | pl.Date | pl.Binary)


def _guessed(values: pl.Series) -> pl.DataType | None:
    if values.dtype != pl.String or values.null_count() == values.len():
        return None
    for form, dtype in _GUESSED.items():
        if values.drop_nulls().str.contains(form).all():
            try:
                values.to_frame().select(_from_text(values.name, dtype))
            except pl.exceptions.PolarsError:
                return None
            return dtype
    return None


def _from_text(name: str, dtype: pl.DataType) -> pl.Expr:
    """Return a column of texts as dates or moments; a moment needs its offset from UTC."""
    text = pl.col(name)
    if isinstance(dtype, pl.Datetime):
        return text.str.to_datetime(time_unit="us", time_zone="UTC", strict=True)
    return text.str.to_date(strict=True) if dtype == pl.Date else text.str.decode("base64")
