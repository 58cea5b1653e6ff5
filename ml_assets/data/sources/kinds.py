"""All kinds of sources, the one place that opens the reader of a section, and its partitions, read one by one."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from importlib import import_module
from operator import or_
from typing import Annotated, Any

import polars as pl
from pydantic import Discriminator, GetCoreSchemaHandler, GetJsonSchemaHandler, Tag, TypeAdapter
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from ml_assets.data.sources.protocol import (
    SourceAway,
    SourceReader,
    SourceRefused,
    SourceSection,
    SourceTable,
    Span,
)
from ml_assets.data.tables.cadence import Cadence
from ml_assets.data.tables.manifest import Reconciliation
from ml_assets.data.tables.spec import Incoming, SourceFailed
from ml_assets.data.tables.user_code import FeatureFunctionError
from ml_assets.foundation.days import after
from resources.memory import explained
from resources.platform import Platform


def kind(value: Any) -> Any:
    """Return the kind of a section or of its YAML; `python` if it states none."""
    return value.get("kind", "python") if isinstance(value, dict) else getattr(value, "kind", "python")


_SOURCES, _STREAMS = "ml_assets.data.sources", "ml_assets.extras.streams"
_KINDS: Mapping[str, tuple[str, str]] = {
    "python": (f"{_SOURCES}.python_source.PythonSource", f"{_SOURCES}.python_source.PythonReader"),
    "sql": (f"{_SOURCES}.sql_source.SqlSource", f"{_SOURCES}.sql_source.SqlReader"),
    "s3": (f"{_SOURCES}.file_source.FileSource", f"{_SOURCES}.file_source.FileReader"),
    "file": (f"{_SOURCES}.file_source.FileSource", f"{_SOURCES}.file_source.FileReader"),
    "delta": (f"{_STREAMS}.sections.DeltaSource", f"{_STREAMS}.delta_source.DeltaReader"),
    "iceberg": (f"{_STREAMS}.sections.IcebergSource", f"{_STREAMS}.iceberg_source.IcebergReader"),
    "kafka": (f"{_STREAMS}.sections.KafkaSource", f"{_STREAMS}.kafka_source.KafkaReader"),
    "table": (f"{_SOURCES}.table_source.TableSource", f"{_SOURCES}.table_source.LakeTableReader"),
}
"""Kind → its section, imported at the first section of this kind, and its reader, imported when a source is opened."""


def _imported(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module), attribute)


def _section_type(name: str) -> type[SourceSection]:
    return _imported(_KINDS[name][0])


def _section(value: Any) -> SourceSection:
    if isinstance(value, SourceSection):
        return value
    name = kind(value)
    if name not in tuple(_KINDS):
        expected = ", ".join(map(repr, _KINDS))
        raise PydanticKnownError(
            "union_tag_invalid", {"discriminator": "kind()", "tag": str(name), "expected_tags": expected}
        )
    return _section_type(name).model_validate(value)


def section_types() -> dict[str, type[SourceSection]]:
    """Return kind → type of its section, for documentation. Imports all kinds."""
    return {name: _section_type(name) for name in _KINDS}


class _ByKind:
    """Makes pydantic ask the registry for the type of a section."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            _section, serialization=core_schema.plain_serializer_function_ser_schema(SourceSection.model_dump)
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        sections: Any = reduce(or_, (Annotated[one, Tag(name)] for name, one in section_types().items()))
        union: Any = Annotated[sections, Discriminator(kind)]
        return handler(TypeAdapter[SourceSection](union).core_schema)


AnySource = Annotated[SourceSection, _ByKind()]
"""The `source` section of a dataset."""


def open_source(section: SourceSection, table: SourceTable, platform: Platform) -> SourceReader:
    """Return the reader of `section`. It connects at its first use.

    Raises `VariableMissing` if an environment variable that the section names is not set.
    """
    reader: Callable[..., SourceReader] = _imported(_KINDS[kind(section)][1])
    return reader(section, table, platform)


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
    failure = SourceFailed(explained(said, cause))
    failure.__cause__ = cause
    return failure
