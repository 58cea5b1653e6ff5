"""State of each partition alone: its state, its differences from its declaration, and its inputs.

Here: the facts that main, manifest, ledger and declaration hold about one partition. Not here: the consequences for
partitions made from it (`guard.py`).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from ml_assets.data.tables.cadence import KeyRefused
from ml_assets.data.tables.declared import DeclaredTable, DeclaredTables
from ml_assets.data.tables.manifest import ManifestUnreadable, PartitionManifest
from ml_assets.data.tables.parquet import WRITER
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.validation.column_types import explain_columns
from ml_assets.data.validation.verdict import Verdict
from resources.ledger import Ledger, VerdictRow
from resources.words import name_some

State = Literal["rejected", "unusable", "missing", "current"]
"""State of a partition, explained in `guard.py`. `stale` is missing here, because it also depends on the inputs."""

Node = tuple[str, str]
"""Table id and partition key."""

NAMED = 3
"""Partitions that a reason names. It counts the others."""


@dataclass(slots=True)
class PartitionState:
    """State of one partition alone."""

    state: State
    why: str = ""
    can_be_mended: bool = False
    """True if the partition is not usable and materializing it again may help."""
    differs: list[str] = field(default_factory=list[str])
    """Differences from the declaration, in words."""
    reads: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """Table → input keys: those it was made from and those that the declaration requires now."""
    replaced: set[Node] = field(default_factory=set[Node])
    """Inputs whose content on main changed since the partition was made."""
    changed: set[Node] = field(default_factory=set[Node])
    """Inputs that a rebuild would read with other values: in columns that its function read, and as they were known
    when the partition began."""
    is_retired: bool = False
    """True if it is missing because its table does not retain it any more. Its absence makes nothing stale."""
    manifest: PartitionManifest | None = None
    verdict: VerdictRow | None = None

    def read_digest(self, table: str, key: str) -> str:
        """Return the content digest of an input at the time the partition was made; empty if the input was missing."""
        return self.manifest.inputs.get(table, {}).get(key, "") if self.manifest else ""


def look_up(
    reader: TableReader, ledger: Ledger, tables: DeclaredTables, table: str, keys: Sequence[str]
) -> dict[Node, PartitionState]:
    """Return the states of `keys` and of all partitions behind them, with a few queries per table and depth."""
    found: dict[Node, PartitionState] = {}
    todo: dict[str, set[str]] = {table: set(keys)}
    is_read = True
    while todo:
        here = {
            (name, key): one
            for name, some in todo.items()
            for key, one in _standings(reader, ledger, tables, name, sorted(some), is_read=is_read)
        }
        found |= here
        todo = defaultdict(set)
        for one in here.values():
            for name, read in one.reads.items():
                if fresh := {key for key in read if (name, key) not in found}:
                    todo[name] |= fresh
        is_read = False
    _look_for_rows_rejected_later(ledger, found)
    return found


def _standings(
    reader: TableReader,
    ledger: Ledger,
    tables: DeclaredTables,
    table: str,
    keys: Sequence[str],
    *,
    is_read: bool,
) -> Iterable[tuple[str, PartitionState]]:
    """Yield key → state of partitions of one table. `is_read`: their rows will be read, so check their columns, too."""
    declared = tables.find(table)
    present = reader.digests(table)
    manifests, wrong = reader.checked_manifests(table, [key for key in keys if key in present])
    newest = ledger.newest_verdicts(table, keys)
    inputs = tables.inputs_of(table)

    @cache
    def is_retired(name: str) -> Callable[[str], bool]:
        return tables.retired(name, reader.digests(name))

    for key in keys:
        manifest, row = manifests.get(key), newest.get(key)
        outside = _outside(declared, key)
        is_ours = not outside and (
            key in wrong
            or (manifest is not None and (declared is None or manifest.cadence == declared.cadence.kind))
        )
        one = _own_state(declared, row, present.get(key) if is_ours else None, wrong.get(key, ""))
        one.verdict = row
        one.is_retired = one.state == "missing" and is_retired(table)(key)
        needed: dict[str, Sequence[str]] = {}
        if outside and one.state == "missing":
            one.why = f"is missing ({outside})"
        elif declared is not None and not outside:
            needed = {each.table: each.needed_for(key) for each in inputs}
            one.can_be_mended |= one.state == "missing"
        if is_ours and manifest is not None:
            one.manifest = manifest
            if declared is not None:
                _compare(one, manifest, declared, needed, is_read=is_read)
            needed = {
                name: sorted({*needed.get(name, ()), *manifest.inputs.get(name, ())})
                for name in {**needed, **manifest.inputs}
            }
            one.replaced = {
                (name, read)
                for name, recorded in manifest.inputs.items()
                for read, digest in recorded.items()
                if reader.digests(name).get(read, "") != digest and not is_retired(name)(read)
            }
            known = {each.table: each.as_known(reader, ledger, key) for each in inputs}
            one.changed = {
                (name, read)
                for name, recorded in manifest.inputs.items()
                for read in recorded
                if _is_read_anew(known.get(name, reader), manifest, name, read) and not is_retired(name)(read)
            }
        one.reads = needed
        yield key, one


def _is_read_anew(known: TableReader, manifest: PartitionManifest, name: str, key: str) -> bool:
    """True if a function that reads an input partition again would see other values than before.

    `known`: the input as it was known when the partition of `manifest` began.
    """
    if known.digests(name).get(key, "") == manifest.inputs[name][key]:
        return False
    before = manifest.read_digests.get(name, {}).get(key, "")
    if not before:
        return True
    try:
        return known.read_digests(name, [key], manifest.read_columns[name])[key] != before
    except ManifestUnreadable:
        return True


def _own_state(
    declared: DeclaredTable | None, row: VerdictRow | None, digest: str | None, wrong: str
) -> PartitionState:
    """Return the state by verdict and content alone. `digest` is the content on main; None if missing."""
    # A verdict by other rules, such as those of another cadence, is not about today's partition.
    if row is not None and row.blocks and (declared is None or row.contract_digest == declared.rules_digest):
        return PartitionState("rejected", f"is rejected: {findings_of(row)}")
    if digest is None:
        return PartitionState("missing", "is missing")
    why = ""
    if wrong:
        why = wrong
    elif row is None:
        why = "the ledger has no verdict on it"
    elif row.blocks:
        why = f"its newest verdict is a rejection by rules that changed since: {findings_of(row)}"
    elif row.content_digest != digest:
        why = f"main does not hold the rows of its newest verdict, {row.number}"
    if why:
        return PartitionState("unusable", f"is unusable: {why}; materialize it again", can_be_mended=True)
    return PartitionState("current")


def _compare(
    one: PartitionState,
    manifest: PartitionManifest,
    declared: DeclaredTable,
    needed: Mapping[str, Sequence[str]],
    *,
    is_read: bool,
) -> None:
    """Add the partition's differences from its declaration to `one`."""
    same_contract = manifest.contract_digest == declared.contract_digest
    if not same_contract:
        one.differs.append("the contract changed")
    elif one.verdict is not None and one.verdict.contract_digest != declared.rules_digest:
        one.differs.append("the rule on volume or drift, or the quarantine, changed")
    if manifest.code_version != declared.code_version:
        one.differs.append(f"the code changed ({manifest.code_version} to {declared.code_version})")
    if manifest.inputs and manifest.writer != WRITER:
        one.differs.append(f"the platform changed ({manifest.writer} to {WRITER})")
    for name in sorted({*needed, *manifest.inputs}):
        if name not in needed:
            one.differs.append(f"{name} is no longer an input")
        elif name not in manifest.inputs:
            one.differs.append(f"{name} is a new input")
        elif set(manifest.inputs[name]) != set(needed[name]):
            read, wants = len(manifest.inputs[name]), len(needed[name])
            one.differs.append(f"the lookback on {name} changed ({read} partitions to {wants})")
    if is_read and one.state == "current" and manifest.schema_hash != declared.schema_hash:
        what = explain_columns(manifest.schema, dict(declared.columns))
        one.state = "unusable"
        one.why = f"is unusable: its columns are not those of the contract: {what}"
        # Such rows under today's contract were accepted by a person. Building them again would give the same columns.
        one.can_be_mended = not same_contract
        if one.can_be_mended:
            one.why += "; materialize it again"


def reached_from(found: Mapping[Node, PartitionState], roots: Sequence[Node]) -> dict[Node, Node]:
    """Return partition → nearest root, for `roots` and all partitions made from them."""
    readers: dict[Node, list[Node]] = defaultdict(list)
    if roots:
        for node, one in found.items():
            for name, keys in one.reads.items():
                for key in keys:
                    readers[name, key].append(node)
    reached = {node: node for node in sorted(roots)}
    todo = list(reached)
    for node in todo:  # grows while it is walked
        for reader in readers[node]:
            if reader not in reached:
                reached[reader] = reached[node]
                todo.append(reader)
    return reached


def _look_for_rows_rejected_later(ledger: Ledger, found: Mapping[Node, PartitionState]) -> None:
    """Mark partitions as unusable if rows behind them, at any depth, were rejected later.

    This also holds if main has other rows of that input by now.
    """
    barred = reached_from(
        found, [node for node, one in found.items() if one.state in ("rejected", "unusable")]
    )
    made_from = {node: _replaced(found, one) for node, one in found.items()}
    for node, one in found.items():
        if one.manifest is not None and node not in barred:
            # Skipped for barred partitions: the state of their input already gives the reason.
            made_from[node] = made_from[node].union(one.manifest.behind)
    contents: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for rows in made_from.values():
        for name, key, digest in rows:
            contents[name].add((key, digest))
    stored = {name: ledger.verdicts_of(name, some) for name, some in contents.items()}
    for node, rows in made_from.items():
        one = found[node]
        verdicts = {(name, key, digest): stored[name].get((key, digest)) for name, key, digest in rows}
        bad = sorted({f"{name} {key}" for (name, key, _), row in verdicts.items() if row and row.blocks})
        if bad and one.state == "current":
            one.state, one.can_be_mended = "unusable", True
            one.why = (
                f"is unusable: it was made from rows of {name_some(bad, NAMED)} that were rejected; "
                "materialize it again"
            )


def _replaced(found: Mapping[Node, PartitionState], one: PartitionState) -> set[tuple[str, str, str]]:
    """Return (table, key, content digest) of inputs that main no longer holds with that content."""
    return {
        (name, key, digest)
        for name, keys in one.reads.items()
        for key in keys
        if (digest := one.read_digest(name, key))
        and ((name, key) in one.replaced or found[name, key].state == "missing")
    }


def _outside(declared: DeclaredTable | None, key: str) -> str:
    """Return the reason why `key` is no partition of the declared table; empty if it is one.

    Main may still hold rows of such a key, from an earlier cadence, start or end. They lack the history that a feature
    reads before its own partition, so they do not count as partitions of the table.
    """
    if declared is None:
        return ""
    try:
        declared.cadence.require(key)
    except KeyRefused as error:
        return str(error)
    return ""


def findings_of(row: VerdictRow) -> str:
    """Return one line with the findings of a rejection and the branch of its evidence."""
    findings = [f for f in Verdict.from_json(row.body_json).findings if f.blocks]
    what = "; ".join(f"{f.rule}{f' in {f.column}' if f.column else ''}: {f.measured}" for f in findings)
    return f"{what} (evidence on {row.branch}, verdict {row.number})"
