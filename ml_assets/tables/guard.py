"""The one guard: may these partitions be built on, with everything they were made from, at any depth?

A look-up in main, ledger and declarations; nothing is judged or read here. Feature builds, the first step of a
training, `ml-assets plan` and the demo ask it; the failed-upstream sensor requests what it says can be built.

A partition stands in one of five states:

    rejected  its newest attempt was rejected, and no person accepted it
    unusable  main holds rows that no passing verdict covers, or that cannot be read with the others
    missing   main does not hold it as a partition of the declared cadence
    stale     made with another contract, code, lookback or other inputs than those of today
    current   none of these

A window is refused where any of its partitions is missing, or anything it is made from is rejected or unusable.
Every partition is looked at once, so the cost grows with the partitions and not with the paths between them.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from ml_assets.tables.declared import DeclaredTables
from ml_assets.tables.partition_state import (
    NAMED,
    Node,
    PartitionState,
    State,
    findings_of,
    look_up,
    reached_from,
)
from ml_assets.tables.reader import TableReader
from resources.ledger import Ledger
from resources.words import name_some


@dataclass(frozen=True, kw_only=True)
class WindowValidation:
    """All that stands against building on a window of partitions. Keys are in the order that was asked."""

    table: str
    keys: tuple[str, ...]
    missing: tuple[str, ...]
    """Keys of the window that are not on main as partitions of this table."""
    rejected: Mapping[str, str]
    """`table key` → why; of the window or of what it is made from, at any depth."""
    unusable: Mapping[str, str]
    """The same for rows that no passing verdict covers, or that cannot be read with the others."""
    barred: Mapping[str, str]
    """Key of the window → why it may not be used, itself or for something it is made from."""
    stale: Mapping[str, str]
    """Key of the window → what differs from what it would be made with now."""
    to_build: Mapping[str, tuple[str, ...]]
    """Table → keys that are not usable and that materializing can mend, in the order of building. What needs a
    rejected partition is not among them."""
    inputs: tuple[Mapping[str, str | int], ...]
    """A row per table of the window and of what it is made from, for people."""

    @property
    def refused(self) -> Mapping[str, str]:
        """`rejected` and `unusable`."""
        return {**self.rejected, **self.unusable}

    @property
    def ok(self) -> bool:
        """True where the window may be built on. Stale partitions are usable, and named."""
        return not self.barred

    def explain(self) -> str:
        """Return a few lines for people: what is wrong with which partitions, and what helps."""
        if self.ok and not self.stale:
            return f"{self.table}: all {len(self.keys)} partitions are there, passed and current"
        lines: list[str] = []
        if self.missing:
            lines.append(
                f"{self.table} lacks {len(self.missing)} of {len(self.keys)} partitions: "
                f"{name_some(self.missing)}. Materialize them."
            )
        lines += [f"{what} {why}" for what, why in self.refused.items()]
        if self.stale:
            lines.append(
                f"{self.table} has {len(self.stale)} stale partitions: {name_some(tuple(self.stale))}. "
                "Materialize them to bring them up to date."
            )
        return "\n".join(lines)


def validate_window(
    reader: TableReader, ledger: Ledger, tables: DeclaredTables, table: str, keys: Sequence[str]
) -> WindowValidation:
    """Judge `keys` of `table` at the reader's commit, with all they are made from."""
    found = look_up(reader, ledger, tables, table, keys)
    wanted = [(table, key) for key in keys]
    stale = _stale(found)
    root = reached_from(found, [node for node, one in found.items() if one.state in ("rejected", "unusable")])
    to_build = _to_build(found, wanted)
    return WindowValidation(
        table=table,
        keys=tuple(keys),
        missing=tuple(key for key in keys if found[table, key].state == "missing"),
        rejected=_named(found, table, "rejected"),
        unusable=_named(found, table, "unusable"),
        barred={
            node[1]: _barred(found, node, root)
            for node in wanted
            if node in root or found[node].state == "missing"
        },
        stale={node[1]: stale[node] for node in wanted if node in stale and found[node].state == "current"},
        to_build={
            name: tuple(sorted(key for where, key in to_build if where == name))
            for name in tables.in_building_order({name for name, _ in to_build})
        },
        inputs=tuple(_rows(found, tables, stale)),
    )


Contents = Mapping[str, Set[tuple[str, str]]]
"""Table → (key, content digest) of rows that something was made from."""


def contents_behind(reader: TableReader, table: str, keys: Sequence[str]) -> Contents:
    """Return the rows of `keys` and all they were made from, at any depth, at the reader's commit.

    `PartitionMissing` names those of `keys` that it does not hold.
    """
    reader.manifests(table, keys)
    contents: dict[str, set[tuple[str, str]]] = defaultdict(set)
    contents[table].update((key, reader.digests(table)[key]) for key in keys)
    for name, key, digest in reader.behind({table: keys}):
        contents[name].add((key, digest))
    return contents


def rejections_of(ledger: Ledger, contents: Contents) -> dict[str, str]:
    """Return `table key` → why, where by now the newest attempt, or the newest verdict on those very rows, is a
    rejection.

    For what goes on later with a window that was judged then. Newer rows that passed are no reason.
    """
    found: dict[str, str] = {}
    for name, rows in sorted(contents.items()):
        of_rows = ledger.verdicts_of(name, rows)
        newest = ledger.newest_verdicts(name, {key for key, _ in rows})
        for key, digest in sorted(rows):
            for row in (newest.get(key), of_rows.get((key, digest))):
                if row is not None and row.blocks:
                    found.setdefault(f"{name} {key}", f"is rejected: {findings_of(row)}")
    return found


def _stale(found: Mapping[Node, PartitionState]) -> dict[Node, str]:
    """Partition → what differs, for those that are not what would be made now."""
    own: list[Node] = []
    gone: dict[Node, set[Node]] = {}
    for node, one in found.items():
        # What it was made without, and is still not there, is no difference.
        gone[node] = {
            (name, key)
            for name, keys in one.reads.items()
            for key in keys
            if one.read_digest(name, key) and found[name, key].state == "missing"
        }
        if one.manifest is not None and (one.differs or one.changed or gone[node]):
            own.append(node)
    reached = reached_from(found, own)
    reasons: dict[Node, str] = {}
    for node in reached:
        one = found[node]
        if one.manifest is None:
            continue
        why = list(one.differs)
        for name, read in one.reads.items():
            changed = [key for key in read if (name, key) in one.changed]
            behind = [key for key in read if (name, key) in reached and key not in changed]
            lacking = [key for key in read if (name, key) in gone[node] and key not in changed]
            if lacking:
                why.append(f"{name} {name_some(lacking, NAMED)} is missing")
            if changed:
                why.append(f"{name} {name_some(changed, NAMED)} changed")
            if behind:
                how = "is stale itself" if len(behind) == 1 else "are stale themselves"
                why.append(f"{name} {name_some(behind, NAMED)} {how}")
        reasons[node] = "; ".join(why)
    return reasons


def _to_build(found: Mapping[Node, PartitionState], window: Sequence[Node]) -> set[Node]:
    """Return the nodes that materializing can mend: of the window, of what it rests on, and what those lack to be
    built.
    """
    doomed = reached_from(found, [node for node, one in found.items() if one.state == "rejected"])
    todo = [node for node in found if found[node].state == "unusable"]
    todo += [node for node in window if found[node].state == "missing"]
    chosen: set[Node] = set()
    while todo:
        node = todo.pop()
        one = found[node]
        if node in chosen or node in doomed or not one.can_be_mended:
            continue
        chosen.add(node)
        for name, keys in one.reads.items():
            todo += [(name, key) for key in keys if found[name, key].state == "missing"]
    return chosen


def _barred(found: Mapping[Node, PartitionState], node: Node, root: Mapping[Node, Node]) -> str:
    one = found[node]
    if one.state in ("rejected", "unusable", "missing"):
        return f"is {one.state}"
    table, key = root[node]
    return f"is made from {table} {key}, which is {found[root[node]].state}"


def _named(found: Mapping[Node, PartitionState], table: str, state: State) -> dict[str, str]:
    """`table key` → why, of the partitions in `state`; inputs before `table`."""
    nodes = sorted((node for node in found if found[node].state == state), key=lambda n: (n[0] == table, n))
    return {f"{name} {key}": _with_readers(found, (name, key), table) for name, key in nodes}


def _with_readers(found: Mapping[Node, PartitionState], node: Node, table: str) -> str:
    name, key = node
    if name == table:
        return found[node].why
    by = sorted(
        f"{where} {day}"
        for (where, day), one in found.items()
        if key in one.reads.get(name, ()) and one.manifest is not None
    )
    return found[node].why + (f"; read by {name_some(by, NAMED)}" if by else "")


def _rows(
    found: Mapping[Node, PartitionState], tables: DeclaredTables, stale: Mapping[Node, str]
) -> Iterable[Mapping[str, str | int]]:
    """A table a row, those that were made from others first."""
    for table in reversed(tables.in_building_order({name for name, _ in found})):
        ours = {key: found[name, key] for name, key in sorted(found) if name == table}
        declared = tables.find(table)
        status = Counter(one.verdict.status for one in ours.values() if one.verdict is not None)
        words = [
            f"{key} accepted by {one.verdict.acceptance.author}: {one.verdict.acceptance.reason}"
            for key, one in ours.items()
            if one.verdict is not None and one.verdict.acceptance is not None
        ]
        manifests = [one.manifest for one in ours.values() if one.manifest is not None]
        behind = [key for key, one in ours.items() if (table, key) in stale and one.state == "current"]
        yield {
            "table": table,
            "cadence": declared.cadence.kind if declared else "not declared",
            "partitions": len(ours),
            "first": min(ours),
            "last": max(ours),
            "passed": status["passed"],
            "warned": status["warned"],
            "accepted": status["accepted"],
            "stale": len(behind),
            "contract": _one_of(manifest.contract_digest[:12] for manifest in manifests),
            "code": _one_of(manifest.code_version for manifest in manifests),
            "remarks": "; ".join(
                [*words[:NAMED], *(f"{key} is stale: {stale[table, key]}" for key in behind[:1])]
            ),
        }


def _one_of(values: Iterable[str]) -> str:
    found = sorted(set(values))
    return found[0] if len(found) == 1 else f"{len(found)} versions"
