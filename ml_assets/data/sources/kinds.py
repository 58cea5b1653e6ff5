"""All kinds of sources: the section of a `defs.yaml`, and the one place that opens the reader of a section."""

from typing import Annotated, Any

from pydantic import Discriminator, Tag

from ml_assets.data.sources.delta_source import DeltaReader, DeltaSource
from ml_assets.data.sources.file_source import FileReader, FileSource
from ml_assets.data.sources.iceberg_source import IcebergReader, IcebergSource
from ml_assets.data.sources.kafka_source import KafkaReader, KafkaSource
from ml_assets.data.sources.protocol import SourceReader, SourceTable
from ml_assets.data.sources.python_source import PythonReader, PythonSource
from ml_assets.data.sources.sql_source import SqlReader, SqlSource
from ml_assets.data.sources.table_source import LakeTableReader, TableSource
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
