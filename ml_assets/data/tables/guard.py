"""Guard: decide if the partitions of a window may be read, with everything they were made from, at any depth.

The guard looks up main, ledger and declarations. It validates nothing and reads no rows. Feature builds, the first step
of a training, `ml-assets plan` and the demo call it. The failed-upstream sensor requests the partitions of `to_build`.

A partition is in one of five states:

    rejected  its newest verdict is a rejection, and no person accepted it
    unusable  main holds rows that no passing verdict covers, or that cannot be read with the others
    missing   main does not hold it as a partition of the declared cadence, or it is before the table's start or
              after its end
    stale     its contract, code, lookback or inputs changed since it was made
    current   none of these

A window is refused if one of its partitions is missing, or if a partition of it or behind it is rejected or unusable.
The guard visits every partition once, so its cost grows with the partitions and not with the paths between them.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from ml_assets.data.tables.declared import DeclaredTables
from ml_assets.data.tables.partition_state import (
    NAMED,
    Node,
    PartitionState,
    State,
    findings_of,
    look_up,
    reached_from,
)
from ml_assets.data.tables.reader import TableReader
from resources.ledger import Ledger
from resources.words import name_some


@dataclass(frozen=True, kw_only=True)
class WindowValidation:
    """Reasons against building on a window of partitions. Keys are in the caller's order."""

    table: str
    keys: tuple[str, ...]
    missing: tuple[str, ...]
    """Keys of the window that are not on main as partitions of this table."""
    rejected: Mapping[str, str]
    """`table key` → reason, for partitions of the window and their inputs at any depth."""
    unusable: Mapping[str, str]
    """The same for rows that no passing verdict covers, or that cannot be read with the others."""
    barred: Mapping[str, str]
    """Key of the window → reason why it may not be used: its own state or that of an input."""
    stale: Mapping[str, str]
    """Key of the window → changes since it was made."""
    to_build: Mapping[str, tuple[str, ...]]
    """Table → unusable or missing keys that materializing can fix, in the order of building. Keys that need a
    rejected partition, or one before the start or after the end of its table, are left out."""
    to_rebuild: Mapping[str, Sequence[str]]
    """Table → stale keys of the window, and of those behind it, in the order of building."""
    impossible: Mapping[str, str]
    """`table key` → reason, for partitions that a missing one needs and that the declared table cannot have."""
    inputs: tuple[Mapping[str, str | int], ...]
    """Summary for people: a row for the table of the window and for each table behind it."""

    @property
    def refused(self) -> Mapping[str, str]:
        """`rejected` and `unusable`."""
        return {**self.rejected, **self.unusable}

    @property
    def ok(self) -> bool:
        """True if the window may be built on. Stale partitions do not prevent it."""
        return not self.barred

    def explain(self) -> str:
        """Return a few lines for people: the faults, the partitions that have them, and the remedy."""
        if self.ok and not self.stale:
            return f"{self.table}: all {len(self.keys)} partitions exist, passed and are current"
        lines: list[str] = []
        if self.missing:
            lines.append(
                f"{self.table} lacks {len(self.missing)} of {len(self.keys)} partitions: "
                f"{name_some(self.missing)}. Materialize them."
            )
        lines += [f"{what} {why}" for what, why in together(self.refused).items()]
        if self.stale:
            lines.append(
                f"{self.table} has {len(self.stale)} stale partitions: {name_some(tuple(self.stale))}. "
                "Materialize them to bring them up to date."
            )
        return "\n".join(lines)


def validate_window(
    reader: TableReader, ledger: Ledger, tables: DeclaredTables, table: str, keys: Sequence[str]
) -> WindowValidation:
    """Look up the states of `keys` of `table` and of all partitions behind them, at the reader's commit."""
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
        to_rebuild=_to_rebuild(found, stale, tables),
        impossible=_impossible(found),
        inputs=tuple(_rows(found, tables, stale)),
    )


def together(refused: Mapping[str, str]) -> dict[str, str]:
    """Return `table key` → reason with an entry for all partitions of a table that have the same reason, from three on.

    After a change of the contract, all partitions have it.
    """
    alike: dict[tuple[str, str], list[str]] = {}
    for what, why in refused.items():
        alike.setdefault((what.rpartition(" ")[0], why), []).append(what)
    found: dict[str, str] = {}
    for (_, why), ones in alike.items():
        if len(ones) < _ALIKE:
            found |= dict.fromkeys(ones, why)
        else:
            last = max(ones).rpartition(" ")[2]
            found[f"{min(ones)} to {last}, {len(ones)} in all"] = why
    return found


Contents = Mapping[str, Set[tuple[str, str]]]
"""Table → (key, content digest) of the input rows of a result."""


def contents_behind(reader: TableReader, table: str, keys: Sequence[str]) -> Contents:
    """Return the contents of `keys` and of all partitions behind them, at any depth, at the reader's commit.

    Raises `PartitionMissing` for keys that this commit does not hold.
    """
    reader.manifests(table, keys)
    contents: dict[str, set[tuple[str, str]]] = defaultdict(set)
    contents[table].update((key, reader.digests(table)[key]) for key in keys)
    for name, key, digest in reader.behind({table: keys}):
        contents[name].add((key, digest))
    return contents


def rejections_of(ledger: Ledger, contents: Contents) -> dict[str, str]:
    """Return `table key` → reason for each content that is rejected now.

    A content counts as rejected if the newest verdict on its partition, or the newest verdict on exactly these rows,
    is a rejection. Callers ask this when they continue with a window that the guard checked earlier. Newer rows that
    passed are no reason.
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
    """Return partition → changes since it was made, for stale partitions."""
    own: list[Node] = []
    gone: dict[Node, set[Node]] = {}
    for node, one in found.items():
        # An input that was missing when the partition was made, and still is, is no change.
        gone[node] = {
            (name, key)
            for name, keys in one.reads.items()
            for key in keys
            if one.read_digest(name, key)
            and found[name, key].state == "missing"
            and not found[name, key].is_retired
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
    """Return the nodes that materializing can fix: in the window, behind it, and missing inputs of these."""
    doomed = reached_from(found, [node for node, one in found.items() if one.state == "rejected"])
    # Only of unbuilt partitions: a built one may have read such an input under an earlier declaration.
    unbuilt = {node: one for node, one in found.items() if one.manifest is None}
    doomed |= reached_from(unbuilt, [node for node, one in unbuilt.items() if _is_impossible(one)])
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


def _to_rebuild(
    found: Mapping[Node, PartitionState], stale: Mapping[Node, str], tables: DeclaredTables
) -> dict[str, tuple[str, ...]]:
    """Return table → stale keys: those of inputs too, because rows made from stale ones stay stale."""
    chosen: dict[str, tuple[str, ...]] = {}
    for name in tables.in_building_order({name for name, _ in stale}):
        declared = tables.find(name)
        keys = sorted(key for where, key in stale if where == name and found[where, key].state == "current")
        if declared is not None and keys:
            chosen[name] = tuple(key for key in keys if declared.cadence.covers(key))
    return chosen


def _is_impossible(one: PartitionState) -> bool:
    return one.state == "missing" and not one.can_be_mended


def _impossible(found: Mapping[Node, PartitionState]) -> dict[str, str]:
    """Return `table key` → reason for inputs of missing partitions that the declared table cannot have."""
    needed = {
        (name, key)
        for one in found.values()
        if one.manifest is None
        for name, keys in one.reads.items()
        for key in keys
    }
    return {
        f"{name} {key}": found[name, key].why
        for name, key in sorted(needed)
        if _is_impossible(found[name, key])
    }


def _barred(found: Mapping[Node, PartitionState], node: Node, root: Mapping[Node, Node]) -> str:
    one = found[node]
    if one.state == "missing":
        return one.why
    if one.state in ("rejected", "unusable"):
        return f"is {one.state}"
    table, key = root[node]
    return f"is made from {table} {key}, which is {found[root[node]].state}"


def _named(found: Mapping[Node, PartitionState], table: str, state: State) -> dict[str, str]:
    """Return `table key` → reason for the partitions in `state`; inputs come before `table`."""
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
    """Yield one row per table; derived tables come before their inputs."""
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


_NAMED = 5
"""Unusable inputs that the message names."""
_ALIKE = 3
"""Partitions with the same reason from which an entry stands for all of them."""
_KEYS_NAMED = 12
"""Missing partitions that the message names."""


class BuildRefused(Exception):
    """Nothing is built, and a retry cannot help. The message is a whole sentence with the reason and the remedy."""


class InputsRefused(BuildRefused):
    """Inputs are missing, rejected or unusable."""

    def __init__(
        self,
        who: str,
        refused: Mapping[str, str],
        missing: Mapping[str, Sequence[str]] | None = None,
        more: str = "",
    ) -> None:
        """Compose the message: `who` cannot be built because of `refused`, which is input → reason.

        `missing` is table → keys that can be built; the failed-upstream sensor requests them. `more` is appended to the
        message.
        """
        self.refused, self.missing = (
            dict(refused),
            {table: list(keys) for table, keys in (missing or {}).items()},
        )
        shown = together(refused)
        named = "; ".join(f"{what} ({why})" for what, why in list(shown.items())[:_NAMED])
        others = f"; and {len(shown) - _NAMED} more" if len(shown) > _NAMED else ""
        wanted = "; ".join(f"{table}: {name_some(keys, _KEYS_NAMED)}" for table, keys in self.missing.items())
        help_missing = (
            f" Missing: {wanted}. The sensor build_missing_upstream requests them, or, in a terminal, ml-assets launch "
            "with --with-missing."
            if wanted
            else ""
        )
        super().__init__(
            f"{who} refuses to build on unusable inputs: {named}{others}.{help_missing} Fix the source of a "
            f"rejected partition, or accept the partition: ml-assets accept TABLE PARTITION --reason '…'.{more}"
        )
