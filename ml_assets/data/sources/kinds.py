"""All kinds of sources, the one place that opens the reader of a section, and its partitions, read one by one."""

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any

import polars as pl
from pydantic import Discriminator, Tag

from ml_assets.data.sources.delta_source import DeltaReader, DeltaSource
from ml_assets.data.sources.file_source import FileReader, FileSource
from ml_assets.data.sources.iceberg_source import IcebergReader, IcebergSource
from ml_assets.data.sources.kafka_source import KafkaReader, KafkaSource
from ml_assets.data.sources.protocol import SourceAway, SourceReader, SourceRefused, SourceTable, Span
from ml_assets.data.sources.python_source import PythonReader, PythonSource
from ml_assets.data.sources.sql_source import SqlReader, SqlSource
from ml_assets.data.sources.table_source import LakeTableReader, TableSource
from ml_assets.data.tables.cadence import Cadence
from ml_assets.data.tables.manifest import Reconciliation
from ml_assets.data.tables.spec import Incoming, SourceFailed
from ml_assets.data.tables.user_code import FeatureFunctionError
from ml_assets.foundation.days import after
from resources.platform import Platform


def kind(value: Any) -> Any:
    """Return the kind of a section or of its YAML; `python` if it states none."""
    return value.get("kind", "python") if isinstance(value, dict) else getattr(value, "kind", "python")


AnySource = Annotated[
    Annotated[PythonSource, Tag("python")]
    | Annotated[SqlSource, Tag("sql")]
    | Annotated[FileSource, Tag("s3")]
    | Annotated[FileSource, Tag("file")]
    | Annotated[DeltaSource, Tag("delta")]
    | Annotated[IcebergSource, Tag("iceberg")]
    | Annotated[KafkaSource, Tag("kafka")]
    | Annotated[TableSource, Tag("table")],
    Discriminator(kind),
]
"""The `source` section of a dataset."""


def open_source(section: AnySource, table: SourceTable, platform: Platform) -> SourceReader:
    """Return the reader of `section`. It connects at its first use.

    Raises `VariableMissing` if an environment variable that the section names is not set.
    """
    match section:
        case PythonSource():
            return PythonReader(section, table)
        case SqlSource():
            return SqlReader(section, table, platform)
        case FileSource():
            return FileReader(section, table, platform)
        case DeltaSource():
            return DeltaReader(section, table, platform)
        case IcebergSource():
            return IcebergReader(section, table, platform)
        case KafkaSource():
            return KafkaReader(section, table, platform)
        case TableSource():
            return LakeTableReader(section, table, platform)


def read_partitions(
    reader: SourceReader, cadence: Cadence, keys: Iterable[str], require_closed: Callable[[str], None]
) -> Iterator[Incoming]:
    """Yield each partition of `keys`: its rows, or the reason why there are none.

    `require_closed` raises `PartitionOpen` for a partition that still gets rows, which is not read.

    After a source did not answer for one partition, fail the others at once: each would wait as long as the first.
    """
    away: SourceAway | None = None
    for key in keys:
        if away is not None:
            yield Incoming(key=key, data=_failure(f"not read, because {away}", away))
            continue
        try:
            require_closed(key)
            rows = reader.read(span_of(cadence, key))
        except SourceAway as error:
            away = error
            yield Incoming(key=key, data=_failure(str(error), error))
        except SourceRefused as error:
            yield Incoming(key=key, data=_failure(str(error), error))
        except FeatureFunctionError as error:
            yield Incoming(key=key, data=_failure(str(error), error.__cause__))
        except (Exception, pl.exceptions.PanicException) as error:
            # Nobody foresaw it. Its text may quote values of hidden columns.
            yield Incoming(
                key=key,
                data=_failure(
                    f"{key} could not be read: {type(error).__name__}, whose traceback is below. Look for a damaged "
                    "value or name in its rows; if they are right, this is a defect of the reader",
                    error,
                ),
            )
        else:
            yield Incoming(
                key=key,
                data=rows.frame,
                undated=rows.undated,
                reconciliation=Reconciliation(returned=rows.returned, repeated=rows.repeated),
                watermark=rows.watermark,
                version=rows.version,
            )


def span_of(cadence: Cadence, key: str) -> Span | None:
    """Return the days of a partition, or its hour; None for a table without partitions."""
    if cadence.kind == "none":
        return None
    first, last = cadence.bounds(key)
    return Span(first, after(last))


def _failure(said: str, cause: BaseException | None) -> SourceFailed:
    failure = SourceFailed(said)
    failure.__cause__ = cause
    return failure
