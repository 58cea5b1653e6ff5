"""Readmission of quarantined rows: validate them again with the rows on main, and publish what passes now."""

from dataclasses import replace

import polars as pl

from ml_assets.data.tables import layout
from ml_assets.data.tables.declared import DeclaredTables
from ml_assets.data.tables.publish.audit import validate
from ml_assets.data.tables.publish.prepare import prepare_chunks
from ml_assets.data.tables.publish.publish import PublishResult, publish
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.spec import Incoming, PublishingRun, TableSpec
from ml_assets.data.validation.explain import shown
from ml_assets.data.validation.quarantine import COLUMN, REASON, RULE, reasons_of, without_reasons
from resources.lake import VersionedStore
from resources.ledger import Ledger, Person
from resources.words import counted, name_some


class NotReadmitted(Exception):
    """Quarantined rows cannot return. The message says why, and what to do."""


def quarantined_keys(reader: TableReader, table: str) -> list[str]:
    """Return the partitions of `table` with quarantined rows, sorted; none for tables that set no rows aside."""
    name = layout.quarantine_of(table)
    return reader.keys(name) if name else []


def quarantined_rules(reader: TableReader, table: str, key: str) -> tuple[int, dict[str, int]]:
    """Return the number of quarantined rows of a partition, and rule → rows by the first rule that each breaks."""
    manifest = reader.manifest(layout.quarantine_of(table) or table, key)
    return manifest.rows, reasons_of(manifest.profile)


def shown_rows(reader: TableReader, spec: TableSpec, key: str, rows: int) -> pl.DataFrame:
    """Return the first quarantined rows for people: reasons first, values of sensitive columns hidden."""
    first = quarantined_rows(reader, spec.table, key).head(rows)
    hidden = [shown(first[name], spec.contract) for name in first.columns if spec.hides(name)]
    return first.with_columns(hidden).select(RULE, COLUMN, REASON, pl.exclude(RULE, COLUMN, REASON))


def quarantined_rows(reader: TableReader, table: str, key: str) -> pl.DataFrame:
    """Return the quarantined rows of a partition, with the columns of `validation.quarantine`.

    Raises `NotReadmitted` if there are none.
    """
    name = layout.quarantine_of(table)
    if name is None or key not in reader.keys(name):
        raise NotReadmitted(
            f"{table} {key} has no quarantined rows: `ml-assets quarantine list` shows those that are"
        )
    return reader.scan(name, [key]).collect()


def readmit(
    store: VersionedStore,
    ledger: Ledger,
    spec: TableSpec,
    key: str,
    by: Person,
    tables: DeclaredTables,
) -> PublishResult:
    """Validate the rows on main and the quarantined ones together by today's rules, and publish the result.

    `tables` are today's declarations, for foreign keys. Rows that still break a rule stay in quarantine. A second call
    changes nothing. Raises `NotReadmitted`, and leaves everything as it is, if there are no quarantined rows, if the
    partition would be rejected, if its newest verdict is a rejection, if an acceptance left out rows of its source, or
    if the code that made the rows changed since.
    Raises `IdentityNeeded` if the ledger has accounts and `by` acts for none in force.
    """
    ledger.accounts.require_identity(by)
    if key == layout.UNDATED:
        raise NotReadmitted(
            f"the rows without a time of {spec.table} belong to no partition: fill their time at the source, and "
            "materialize the partitions to which they belong"
        )
    reader = TableReader.at(store)
    bad = without_reasons(quarantined_rows(reader, spec.table, key))
    newest = ledger.newest_verdicts(spec.table, [key])
    if key in newest and newest[key].blocks:
        raise NotReadmitted(
            f"the newest verdict on {spec.table} {key} is a rejection of other rows: fix its source and materialize "
            "it again, which validates all its rows"
        )
    manifest = reader.manifest(spec.table, key)
    if manifest.code_version != spec.code_version:
        raise NotReadmitted(
            f"{spec.table} {key} was made by code {manifest.code_version or 'unknown'} and would be made by "
            f"{spec.code_version} now: materialize it again, which validates all its rows"
        )
    reconciliation = manifest.reconciliation
    if reconciliation is not None and (left_out := reconciliation.missing(manifest.rows)):
        raise NotReadmitted(
            f"{spec.table} {key} was accepted without {counted(left_out, 'row')} of its source: materialize it again, "
            "which validates all its rows; then accept it again, if it is rejected"
        )
    good = reader.scan(spec.table, [key]).collect()
    incoming = Incoming(
        key=key,
        data=pl.concat([good, bad.select(good.columns)]),
        inputs=manifest.inputs,
        read_columns=manifest.read_columns,
        read_digests=manifest.read_digests,
        behind=manifest.behind,
        reconciliation=reconciliation
        and replace(reconciliation, quarantined=reconciliation.quarantined - bad.height),
        version=manifest.source_version,
        watermark=manifest.watermark,
    )
    [chunk] = prepare_chunks(spec, [incoming])
    verdicts = [one.verdict for one in validate(ledger, spec, chunk.ready, newest, reader, tables).values()]
    refused = [*chunk.failed.values(), *(verdict.explain() for verdict in verdicts if verdict.blocks)]
    if refused:
        raise NotReadmitted(
            f"{spec.table} {key} stays as it is, because its rows would be rejected together with those in "
            f"quarantine: {name_some(refused)}"
        )
    run = PublishingRun(run_id="readmit", author=by.name)
    return publish(store, ledger, spec, [incoming], run, tables)
