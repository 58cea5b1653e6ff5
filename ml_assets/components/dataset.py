"""`Dataset`: a table that comes from a source, by write–audit–publish, and the sensor that looks for new data there."""

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import takewhile, zip_longest

import dagster as dg

from ml_assets.components.assets.table import RunRows, TableRun, table_asset
from ml_assets.components.base import SpecComponent
from ml_assets.components.metadata import PARTITION, RANGE_END, RANGE_START
from ml_assets.components.pages import ON_A_PAGE
from ml_assets.components.scaffold.scaffolders import DatasetScaffolder
from ml_assets.components.sensors.ticks import Tick, TickAnswer, ticking_sensor
from ml_assets.components.specs import DatasetSpec
from ml_assets.dagster_host.event_log import NOT_FINISHED_STATUSES
from ml_assets.data.sources.kinds import kind, open_source, read_partitions
from ml_assets.data.sources.protocol import PageFacts, SourceReader
from ml_assets.data.sources.watched import WatchedPartitions
from ml_assets.data.sources.workers import read_by_workers
from ml_assets.data.tables.cadence import Cadence
from ml_assets.data.tables.declared import DeclaredTables
from ml_assets.data.tables.layout import MAIN
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.spec import Incoming, TableSpec
from resources.platform import Platform
from resources.words import counted, name_some

RECHECKED = 2
"""Newest partitions on main that each tick compares with the source, if `source.watch` says nothing else."""


@dg.scaffold_with(DatasetScaffolder)
class Dataset(SpecComponent):
    """A dated table ingested from a source, validated on a branch, merged only if it passed."""

    spec_type = DatasetSpec
    produces = ("asset", "asset_check", "sensor")
    spec: DatasetSpec

    @property
    def table(self) -> TableSpec:
        """The table, as it is published."""
        table = self.spec.table("datasets", self.spec.source.code_version)
        return replace(table, is_known_at_ingestion=self.spec.known_at == "ingestion")

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return one asset with its checks, and a sensor if the source is watched."""
        spec = self.spec
        table = self.table

        @contextmanager
        def read(run: TableRun) -> Iterator[RunRows]:
            with closing(open_source(spec.source, spec.source_table, run.platform)) as source:

                def facts() -> PageFacts:
                    return {**source.facts(), **recheck_facts(spec, source, run.platform)}

                if spec.source.reads_at_once > 1:
                    found = read_by_workers(
                        run.platform, spec.source, spec.source_table, table, run.keys, spec.require_closed
                    )
                    with closing(found) as made:
                        yield RunRows(incoming=made, facts=facts)
                    return
                incoming = read_partitions(source, table.cadence, run.keys, spec.require_closed)
                yield RunRows(incoming=_noting_older_marks(run, table.table, incoming), facts=facts)

        facts = {"source": kind(spec.source)} | ({"known at": spec.known_at} if spec.known_at else {})
        asset = table_asset(spec, table, read, kind="table", facts=facts)
        sensors = [new_data_sensor(spec, asset.key)] if spec.source.watch else []
        return dg.Definitions(assets=[asset], sensors=sensors)


def _noting_older_marks(run: TableRun, table: str, incoming: Iterable[Incoming]) -> Iterator[Incoming]:
    """Yield `incoming` unchanged; log a warning for a partition whose watermark is older than the one on main."""
    for one in incoming:
        if one.watermark is not None and one.key in run.reader.digests(table):
            readable, _ = run.reader.checked_manifests(table, [one.key])
            before = readable[one.key].watermark if one.key in readable else None
            if before is not None and one.watermark < before:
                run.context.log.warning(
                    f"{table} {one.key}: the newest change at the source is of {one.watermark.isoformat()}, and main "
                    f"has one of {before.isoformat()}: rows were removed or restored there, or its clock was set back. "
                    "The rows of today count. If they are wrong, correct the source and materialize the partition again"
                )
        yield one


def new_data_sensor(spec: DatasetSpec, key: dg.AssetKey) -> dg.SensorDefinition:
    """Return the sensor that asks the source for its latest day and requests partitions that are new or not usable.

    After `retry_seconds` it requests partitions again that failed, were rejected or are missing, unless a run in
    progress makes them. It also requests partitions whose rows changed at the source (`SourceReader.look`), until they
    were read.
    """
    watch = spec.source.watch
    if watch is None:
        raise ValueError(f"datasets/{spec.name} declares no source.watch")
    table = "/".join(key.path)
    unit = "hour" if spec.cadence.kind == "hourly" else "day"
    kept: list[tuple[Platform, WatchedPartitions]] = []

    def watched_at(platform: Platform, tables: DeclaredTables) -> WatchedPartitions:
        """Return what earlier ticks of this process learned about the table of `platform`."""
        if not kept or kept[0][0] is not platform:
            here = WatchedPartitions(platform.lake, platform.ledger, tables, table, spec.cadence)
            kept[:] = [(platform, here)]
        return kept[0][1]

    def new_data(
        tick: Tick, platform: dg.ResourceParam[Platform], tables: dg.ResourceParam[DeclaredTables]
    ) -> TickAnswer:
        now, cadence = tick.now, spec.cadence
        known = watched_at(platform, tables)
        known.follow()
        asked: dict[str, float] = json.loads(tick.own or "{}")
        # A change that was requested and not read, because its run failed, stays in the window until it is.
        unread = [key for key in asked if key in known.span_of]
        window = {*rechecked(spec, known.present), *unread}
        with closing(open_source(spec.source, spec.source_table, platform)) as source:
            look = source.look(known.read, [known.span_of[key] for key in window])
        changed, ahead = (sorted(known.key_of[span] for span in some) for some in (look.changed, look.ahead))
        tick.saw(
            main=known.commit_id, ledger=known.place, latest=str(look.latest), changed=changed, ahead=ahead
        )
        told = f"{_cost(look.cost)} for {counted(len(window), 'rechecked partition')}"
        tick.context.log.info(f"the source of {table}: {told}")
        if ahead:
            tick.context.log.warning(
                f"the source of {table} dated changes of {name_some(ahead, ON_A_PAGE)} later than its clock says now: "
                "its clock was set back, or was ahead before. Changes made since then look older than what was read, "
                "so these partitions are requested again. Set the clock right; then materialize them once more"
            )
        complete = cadence.complete(look.latest) if look.latest is not None else []
        over = bisect_right(complete, now, key=lambda key: spec.closes_at(key) or now)
        closed, closes = complete[:over], [spec.closes_at(key) for key in complete[over : over + 1]]
        lacking = known.lacking(closed) | {*changed}
        if not lacking:
            if look.latest is None:
                said = f"the source of {table} has no complete {unit} yet"
            else:
                so_far = f"is complete up to {closed[-1]}" if closed else "has no partition that is over"
                said = f"{table} {so_far}; the latest {unit} of the source is {look.latest}"
            return TickAnswer(said=f"{said} ({told})", again_at=min(filter(None, closes), default=None))
        at = now.timestamp()
        asked = {key: before for key, before in asked.items() if key in lacking}
        due = sorted(key for key in lacking if tick.seconds_since(asked.get(key)) >= watch.retry_seconds)
        if due:  # a run may wait longer for its place than the sensor for its retry
            made = list(_in_progress(tick.context.instance, key))
            due = [one for one in due if not any(first <= one <= last for first, last in made)]
        asked |= dict.fromkeys(due, at)
        retries = [datetime.fromtimestamp(before + watch.retry_seconds, UTC) for before in asked.values()]
        again_at = min([*retries, *filter(None, closes)])
        wait = f"waiting {watch.retry_seconds} s after the last request for {table}"
        said = f"{wait} {name_some(sorted(lacking), ON_A_PAGE)}"
        requests = [
            dg.RunRequest(tags={RANGE_START: first, RANGE_END: last})
            for first, last in _neighbours(cadence, due)
        ]
        return TickAnswer(said=said, run_requests=requests, own=json.dumps(asked), again_at=again_at)

    return ticking_sensor(
        new_data,
        name=f"{spec.name}_new_data",
        asset_selection=[key],
        every_seconds=watch.every_seconds,
        is_running=watch.enabled,
        description=f"Asks the source of {table} for its latest {unit} and requests new or unusable partitions.",
    )


def _in_progress(instance: dg.DagsterInstance, asset: dg.AssetKey) -> Iterator[tuple[str, str]]:
    """Yield the first and last partition of `asset` that each run makes, or will make once it starts."""
    for run in instance.get_runs(dg.RunsFilter(statuses=NOT_FINISHED_STATUSES)):
        first = run.tags.get(RANGE_START) or run.tags.get(PARTITION)
        if first is not None and asset in (run.asset_selection or ()):
            yield first, run.tags.get(RANGE_END) or first


def rechecked(spec: DatasetSpec, present: Sequence[str]) -> frozenset[str]:
    """Return the partitions among `present`, sorted keys on main, whose rows each tick compares with the source."""
    time = spec.source.watch.recheck_time if spec.source.watch else None
    if time is None or not present:
        return frozenset(present[-RECHECKED:])
    zone = spec.contract.event_time_zone
    newest = spec.cadence.end_of(present[-1], zone)

    def is_in_window(key: str) -> bool:
        end = spec.cadence.end_of(key, zone)
        return end is not None and newest is not None and end > newest - time

    return frozenset(takewhile(is_in_window, reversed(present)))


def recheck_facts(spec: DatasetSpec, source: SourceReader, platform: Platform) -> PageFacts:
    """Return what each tick compares with the source, and what it reads there, for the asset's page."""
    if spec.source.watch is None:
        return {}
    reader, table = TableReader.at(platform.lake, MAIN), f"datasets/{spec.name}"
    window = sorted(rechecked(spec, _present(reader, spec, table)))
    rows = sum(one.rows for one in reader.checked_manifests(table, window)[0].values())
    return {"recheck": f"{counted(len(window), 'partition')} with {rows:,} rows; reads {source.looks_at}"}


def _cost(cost: Mapping[str, int]) -> str:
    """Return what a look at a source read, in words."""
    return ", ".join(f"{name} {number:,}" for name, number in cost.items()) or "no look at its rows"


def _present(reader: TableReader, spec: DatasetSpec, table: str) -> list[str]:
    """Return the keys on main that the table covers, sorted."""
    return sorted(key for key in reader.digests(table) if spec.cadence.covers(key))


def _neighbours(cadence: Cadence, keys: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the first and last of each run of `keys`, which are sorted, without a partition between them."""
    first = None
    for key, following in zip_longest(keys, keys[1:]):
        first = first or key
        if following is None or not cadence.are_neighbours(key, following):
            yield first, key
            first = None
