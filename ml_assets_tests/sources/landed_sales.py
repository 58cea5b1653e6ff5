"""Reader and rows of an installation whose only dataset is the sales, for the tests of every kind of source."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from ml_assets.data.sources.kinds import open_source
from ml_assets.data.sources.protocol import ReadPartition, SourceReader, Span
from ml_assets_tests.components.installation import Installation
from ml_assets_tests.sources.sales import DAYS, SALES, rows

Reader = TypeVar("Reader", bound=SourceReader)


def reader_of(installation: Installation, kind: type[Reader]) -> Reader:
    """Return the reader of the installation's first dataset, which is of this kind."""
    spec = installation._components[0].spec  # pyright: ignore[reportPrivateUsage]
    reader = open_source(spec.source, spec.source_table, installation.platform)
    assert isinstance(reader, kind)
    return reader


def as_read(reader: SourceReader, spans: Iterable[Span]) -> dict[Span, ReadPartition]:
    """Read partitions, and return what main would know of them."""
    found = {span: reader.read(span) for span in spans}
    return {span: ReadPartition(one.watermark, one.version) for span, one in found.items()}


def reopened(
    reader: SourceReader, read: Mapping[Span, ReadPartition], window: Iterable[Span] = ()
) -> set[Span]:
    """Return the partitions that changed at the source, and forget the version of the source that was read."""
    found = reader.look(read, [*window]).changed
    reader.close()
    return {*found}


def require_every_day(installation: Installation) -> None:
    """Fail unless main holds the rows of each day, bit for bit."""
    for day in DAYS:
        assert installation.main.scan(SALES, [day]).collect().equals(rows(day))
