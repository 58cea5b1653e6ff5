"""Partitions that a run which was interrupted has already published. Its retry does not build them again."""

from collections.abc import Collection, Mapping, Sequence

from ml_assets.data.tables.declared import InputTable
from ml_assets.data.tables.publish import PublishedPartition, verdict_of
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.spec import TableSpec
from resources.ledger import Ledger


def published_by(
    runs: Collection[str],
    reader: TableReader,
    ledger: Ledger,
    spec: TableSpec,
    keys: Sequence[str],
    inputs: Sequence[InputTable] = (),
) -> Mapping[str, PublishedPartition]:
    """Return key → partition of `keys` that one of `runs` published, and that would be the same now.

    Main must hold what that run published, made by today's code and rules. A partition of a derived table must also
    have been built from what main now holds of `inputs`. Raises `ManifestUnreadable`.
    """
    if not runs:  # the first try, which is the usual case, asks neither lake nor ledger
        return {}
    digests = reader.digests(spec.table)
    rows = {
        key: row
        for key, row in ledger.newest_verdicts(spec.table, keys).items()
        if row.run_id in runs
        and row.status in ("passed", "warned")
        and row.contract_digest == spec.rules_digest
        and row.content_digest == digests.get(key)
    }
    found: dict[str, PublishedPartition] = {}
    for key, manifest in reader.manifests(spec.table, sorted(rows)).items():
        needed = {
            one.table: one.as_known(reader, ledger, key).input_digests(one.table, one.needed_for(key))
            for one in inputs
        }
        if manifest.code_version == spec.code_version and manifest.inputs == needed:
            found[key] = PublishedPartition(
                content_digest=manifest.content_digest,
                rows=manifest.rows,
                size=manifest.size,
                changed=False,
                verdict=verdict_of(rows[key]),
            )
    return found
