"""Partitions of a table, read from its source one by one. A failure stays the failure of its partition."""

from collections.abc import Callable, Iterable, Iterator

import polars as pl

from ml_assets.data.sources.errors import SourceAway, SourceRefused
from ml_assets.data.sources.protocol import SourceReader, Span
from ml_assets.data.tables.cadence import Cadence
from ml_assets.data.tables.manifest import Reconciliation
from ml_assets.data.tables.spec import Incoming, SourceFailed
from ml_assets.data.tables.user_code import FeatureFunctionError
from ml_assets.foundation.days import after


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
