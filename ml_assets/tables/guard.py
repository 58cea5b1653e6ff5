"""May these partitions be built on? A look-up of verdicts and digests; nothing is judged or read here.

Stale means: made from inputs other than those main holds now. It is our own comparison of digests, since
Dagster does not look at windows of 100 partitions and more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ml_assets.tables.judge import verdict_of
from ml_assets.tables.reader import TableReader
from resources.ledger import Ledger, VerdictRow
from resources.words import name_some


@dataclass(frozen=True, kw_only=True)
class WindowVerdict:
    """What stands against building on a window of partitions. Keys are in the order that was asked."""

    table: str
    keys: int
    """How many partitions were looked at."""
    missing: tuple[str, ...]
    """Not on main, and the newest attempt, if any, was not rejected."""
    rejected: Mapping[str, str]
    """Key → why it may not be used: its newest attempt was rejected (also where an older version stands on
    main), or its columns are not those of the last of these partitions, so that they cannot be read together.
    """
    stale: Mapping[str, str]
    """Key → which inputs are not what it was made from any more."""

    @property
    def ok(self) -> bool:
        """True where nothing is missing or rejected. Stale partitions are usable, and named."""
        return not self.missing and not self.rejected

    def explain(self) -> str:
        """A few lines for people: what is wrong with which partitions, and what helps."""
        if self.ok and not self.stale:
            return f"{self.table}: all {self.keys} partitions are there, passed and current"
        lines: list[str] = []
        if self.missing:
            lines.append(
                f"{self.table} lacks {len(self.missing)} of {self.keys} partitions: "
                f"{name_some(self.missing)}. Materialize them."
            )
        lines += [f"{self.table} {key} was rejected: {why}" for key, why in self.rejected.items()]
        if self.stale:
            lines.append(
                f"{self.table} has {len(self.stale)} partitions made from older inputs: "
                f"{name_some(tuple(self.stale))}. Materialize them to bring them up to date."
            )
        return "\n".join(lines)


def judge_window(reader: TableReader, ledger: Ledger, table: str, keys: Sequence[str]) -> WindowVerdict:
    """The verdict on `keys` of `table` at the reader's commit."""
    present = reader.digests(table)
    newest = ledger.newest_verdicts(table, keys)
    rejected = _other_columns(reader, table, [key for key in keys if key in present])
    rejected |= {key: _why(newest[key]) for key in keys if key in newest and newest[key].blocks}
    return WindowVerdict(
        table=table,
        keys=len(keys),
        missing=tuple(key for key in keys if key not in present and key not in rejected),
        rejected=rejected,
        stale=stale_partitions(reader, table, [key for key in keys if key in present]),
    )


def stale_partitions(reader: TableReader, table: str, keys: Sequence[str]) -> dict[str, str]:
    """Key → why, for those of `keys` (all must exist) whose inputs, or inputs' inputs, changed since."""
    inputs = {key: manifest.inputs for key, manifest in reader.manifests(table, keys).items()}
    read: dict[str, set[str]] = {}
    for tables in inputs.values():
        for source, recorded in tables.items():
            read.setdefault(source, set()).update(recorded)
    # One question per input table, whatever the number of partitions.
    deeper = {
        source: stale_partitions(reader, source, sorted(wanted & reader.digests(source).keys()))
        for source, wanted in read.items()
    }
    found: dict[str, str] = {}
    for key, tables in inputs.items():
        reasons = [
            reason
            for source, recorded in tables.items()
            for reason in _differences(source, recorded, reader.digests(source), deeper[source])
        ]
        if reasons:
            found[key] = name_some(reasons, 3)
    return found


def _other_columns(reader: TableReader, table: str, keys: Sequence[str]) -> dict[str, str]:
    """Key → how its columns differ from those of the last of `keys` (all must exist)."""
    if not keys:
        return {}
    manifests = reader.manifests(table, keys)
    newest = manifests[keys[-1]]
    found: dict[str, str] = {}
    for key, manifest in manifests.items():
        if manifest.schema_hash != newest.schema_hash:
            differing = sorted(name for name, _ in set(manifest.schema.items()) ^ set(newest.schema.items()))
            what = f"differs in {name_some(dict.fromkeys(differing))}" if differing else "has another order"
            found[key] = f"its schema is not that of {newest.key}: {what}; it was made by another contract"
    return found


def _differences(
    table: str, recorded: Mapping[str, str], current: Mapping[str, str], stale: Mapping[str, str]
) -> list[str]:
    changed = [key for key, digest in recorded.items() if current.get(key, "") != digest]
    behind = [key for key in recorded if key in stale and key not in changed]
    reasons: list[str] = []
    if changed:
        reasons.append(f"{table} {name_some(changed, 3)} changed")
    if behind:
        reasons.append(f"{table} {name_some(behind, 3)} is stale itself")
    return reasons


def _why(row: VerdictRow) -> str:
    findings = [f for f in verdict_of(row).findings if f.blocks]
    what = "; ".join(f"{f.rule}{f' in {f.column}' if f.column else ''}: {f.measured}" for f in findings)
    return f"{what} (evidence on {row.branch}, attempt {row.attempt})"
