"""Page about one partition, for a terminal and as HTML: verdict, users, columns, and the partitions before it.

Users are feature tables that read it, trainings behind whose weights it is, and environments with their own. Arranges,
and reads what the page shows from lake and ledger; no rows and no MLflow. Not here: the pictures
(`partition_pictures`), the address of the page (`links`, `served`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from ml_assets.data.tables.cadence import Cadence, KeyRefused
from ml_assets.data.tables.manifest import PartitionManifest
from ml_assets.data.tables.partition_state import findings_of
from ml_assets.data.tables.reader import PartitionMissing, TableReader
from ml_assets.data.validation.profile import completeness
from ml_assets.data.validation.verdict import Verdict
from ml_assets.foundation.reports.page import Block, Bullets, Chapter, Grid, Paragraph, WrittenPage
from ml_assets.model.release.standing import BundleStandings, InputsUnknown, contents_of
from ml_assets.pages.partition_pictures import (
    MOST_COLUMNS,
    MOST_HOURS,
    Profiles,
    pictures_of_columns,
    pictures_of_rows,
)
from resources.lake import LakeError
from resources.lake.environments import branch_of, environments
from resources.ledger import EvaluationRow, VerdictRow
from resources.platform import Platform
from resources.words import counted, name_some

MOST_TRAININGS = 50
"""Trainings whose rows are looked up, the newest ones. Each costs the manifests of its window."""


@dataclass(frozen=True, kw_only=True)
class TrainingThatRead:
    """A training behind whose weights a partition is."""

    model: str
    version: str
    """Semantic version of its bundle; empty if it was not registered."""
    stage: str
    """Stage of its bundle, or the outcome of its gates if it was not registered."""
    partition: str
    """Partition of the model."""
    first: str
    """First partition of its window."""
    last: str
    """Last partition of its window."""
    has_this_content: bool
    """False if it read rows that were replaced since."""
    run_id: str
    """Dagster run that evaluated it."""


@dataclass(frozen=True, kw_only=True)
class PartitionUsers:
    """Users of one partition."""

    tables: Mapping[str, tuple[str, ...]]
    """Feature table → its partitions on main that were made from the rows of today, sorted."""
    tables_of_earlier_rows: Mapping[str, tuple[str, ...]]
    """Feature table → its partitions on main that were made from rows that were replaced since, sorted."""
    trainings: tuple[TrainingThatRead, ...]
    """Newest first."""
    not_asked: int
    """Older trainings whose rows were not looked up."""
    unknown: tuple[str, ...]
    """Trainings, as `model partition`, whose rows the lake or the ledger no longer knows."""
    environments: Mapping[str, str]
    """Environment → `the same rows`, `other rows`, or `no such partition`."""


def users_of(platform: Platform, reader: TableReader, table: str, key: str) -> PartitionUsers:
    """Return the users of a partition that `reader`, at main, holds."""
    content = reader.digests(table)[key]
    trainings: list[TrainingThatRead] = []
    unknown: list[str] = []
    log = platform.ledger.models
    standings = {model: BundleStandings.read(log, model) for model in log.models()}
    newest: dict[tuple[str, str], EvaluationRow] = {
        (model, row.bundle_digest): row for model, one in standings.items() for row in one.evaluations
    }
    rows = sorted(newest.values(), key=lambda row: -row.place)
    names = {
        (model, one.bundle_digest): one.semantic for model in standings for one in reversed(log.names(model))
    }
    for row in rows[:MOST_TRAININGS]:
        try:
            read = {
                digest
                for name, digest in contents_of(reader.store, log, row.trained_on).get(table, ())
                if name == key
            }
        except InputsUnknown:
            unknown.append(f"{row.model} {row.partition}")
            continue
        if read:
            version = names.get((row.model, row.bundle_digest), "")
            stage = standings[row.model].of(row.bundle_digest).stage if version else row.status
            trainings.append(
                TrainingThatRead(
                    model=row.model,
                    version=version,
                    stage=stage,
                    partition=row.partition,
                    first=row.trained_on.first,
                    last=row.trained_on.last,
                    has_this_content=content in read,
                    run_id=row.run_id,
                )
            )
    readers = _readers(reader, table, key)
    return PartitionUsers(
        tables=_of_those(readers, lambda read: read == content),
        tables_of_earlier_rows=_of_those(readers, lambda read: read != content),
        trainings=tuple(trainings),
        not_asked=max(0, len(rows) - MOST_TRAININGS),
        unknown=tuple(unknown),
        environments=_environments(platform, table, key, content),
    )


def _of_those(
    readers: Mapping[str, Mapping[str, str]], is_wanted: Callable[[str], bool]
) -> dict[str, tuple[str, ...]]:
    """Return table → keys of `readers` whose content is wanted; no table without any."""
    found = {
        name: tuple(key for key, read in some.items() if is_wanted(read)) for name, some in readers.items()
    }
    return {name: keys for name, keys in found.items() if keys}


def _readers(reader: TableReader, table: str, key: str) -> dict[str, dict[str, str]]:
    """Return feature table → its partitions at the reader's commit that read `table` `key` → content that each read.

    The oldest and the newest partition of a table tell if it reads `table`: the others are read only then.
    """
    described = reader.described()
    ends = {(name, end) for name, keys in described.items() for end in (keys[0], keys[-1])}
    found: dict[str, dict[str, str]] = {}
    for name in sorted({name for (name, _), inputs in reader.inputs_read(ends).items() if table in inputs}):
        sound, _ = reader.checked_manifests(name, reader.keys(name))
        found[name] = {
            one: read for one, manifest in sound.items() if (read := manifest.inputs.get(table, {}).get(key))
        }
    return found


def _environments(platform: Platform, table: str, key: str, content: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in environments(platform.settings.home):
        try:
            held = TableReader.at(platform.whole_lake, branch_of(one.name)).digests(table).get(key)
        except LakeError:  # somebody drops it now
            continue
        found[one.name] = (
            "no such partition" if held is None else "the same rows" if held == content else "other rows"
        )
    return found


MOST_PARTITIONS = 60
"""Newest partitions up to the one of the page that its pictures show."""
_THESE, _EARLIER = "these rows", "rows that were replaced since"
_TONES = {"passed": "blessed", "warned": "undecided", "accepted": "undecided", "rejected": "rejected"}


class TableMissing(Exception):
    """Main has no partition of such a table."""


class NotOnMain(Exception):
    """A partition was rejected before main held any rows of it."""


def newest_partition(platform: Platform, table: str) -> str:
    """Return the key of the newest partition of `table` on main. Raises `TableMissing`, and the errors of the lake."""
    return _keys(TableReader.at(platform.lake), table)[-1]


def partition_page(
    platform: Platform, table: str, key: str, *, draw: bool = True, links: bool = False
) -> WrittenPage:
    """Return the page about partition `key` of `table` on main.

    `draw`: with pictures. Only one thread of a process may draw at a time. `links`: with links to the pages of its
    neighbours. Raises as `require_partition`, `ManifestUnreadable`, and the errors of lake and ledger.
    """
    reader = TableReader.at(platform.lake)
    require_partition(platform, reader, table, key)
    keys = reader.keys(table)
    shown = keys[: keys.index(key) + 1][-MOST_PARTITIONS:]
    sound, _ = reader.checked_manifests(table, [one for one in shown if one != key])
    manifest = reader.manifest(table, key)
    history = {**sound, key: manifest}
    # A day and a week may share a key.
    history = {
        one: history[one] for one in shown if one in history and history[one].cadence == manifest.cadence
    }
    profiles = {one: each.profile for one, each in history.items()}
    verdict = platform.ledger.newest_verdicts(table, [key]).get(key)
    return WrittenPage(
        title=f"{table} {key}",
        about=f"main at {reader.commit_id[:12]} · content {manifest.content_digest[:12]}",
        headline=f"{counted(manifest.rows, 'row')}, {_standing(manifest, verdict)}.",
        tone=_TONES.get(verdict.status if verdict else "", "undecided"),
        chapters=(
            Chapter("Facts", tuple(_facts(manifest, verdict))),
            Chapter("Used by", tuple(_users(users_of(platform, reader, table, key)))),
            Chapter(
                "Partitions before it",
                tuple(_before(platform, table, history, profiles, draw=draw)),
                note=f"up to {MOST_PARTITIONS}, the last one is {key}",
            ),
            Chapter("Columns", tuple(_columns(manifest, profiles, draw=draw))),
        ),
        others=tuple(_others(keys, key)) if links else (),
    )


def require_partition(platform: Platform, reader: TableReader, table: str, key: str) -> None:
    """Raise `TableMissing`, `PartitionMissing` or `NotOnMain` if `reader`, at main, does not hold a partition."""
    if key in reader.keys(table):
        return
    verdict = platform.ledger.newest_verdicts(table, [key]).get(key)
    if verdict is not None and verdict.blocks:
        raise NotOnMain(
            f"main holds no rows of {table} {key}, because it is rejected: {findings_of(verdict)}. Fix the source and "
            f"materialize it again, or accept it: ml-assets accept {table} {key} --reason '…'"
        )
    _keys(reader, table)
    raise PartitionMissing(table, (key,), reader.commit_id)


def _keys(reader: TableReader, table: str) -> list[str]:
    keys = reader.keys(table)
    if not keys:
        known = name_some(reader.tables(), 9) or "no table yet"
        raise TableMissing(f"main has no partition of {table}; it has partitions of {known}")
    return keys


def _others(keys: Sequence[str], key: str) -> Iterator[tuple[str, str]]:
    """Yield (label, key) of the partitions to which the page links."""
    at = keys.index(key)
    if at > 0:
        yield f"← {keys[at - 1]}", keys[at - 1]
    if at + 1 < len(keys):
        yield f"{keys[at + 1]} →", keys[at + 1]
        yield f"newest: {keys[-1]}", keys[-1]


def _standing(manifest: PartitionManifest, verdict: VerdictRow | None) -> str:
    if verdict is None:
        return "without a verdict"
    if verdict.content_digest != manifest.content_digest:
        return f"but the newest verdict, {verdict.status}, is about other rows"
    return verdict.status


def _facts(manifest: PartitionManifest, verdict: VerdictRow | None) -> Iterator[Block]:
    first, last = manifest.event_time or ("none", "none")
    rows = [
        ("rows", f"{manifest.rows:,} in {counted(len(manifest.files), 'file')}, {manifest.size:,} bytes"),
        *(
            [("rows of the source", manifest.reconciliation.in_words(manifest.rows))]
            if manifest.reconciliation
            else []
        ),
        ("first and last event", f"{first} to {last}"),
        ("source watermark", manifest.source_watermark or "not stated"),
        ("code version", manifest.code_version or "not stated"),
    ]
    if verdict is not None:
        rows.append(
            (
                "verdict",
                f"{verdict.number}, {verdict.status}, of {verdict.at:%Y-%m-%d %H:%M} UTC, run {verdict.run_id}",
            )
        )
        if (accepted := verdict.acceptance) is not None:
            rows.append(
                ("accepted", f"by {accepted.author}, {accepted.at:%Y-%m-%d %H:%M} UTC: {accepted.reason}")
            )
    yield Grid(("fact", "value"), tuple(rows))
    if verdict is not None:
        said = Verdict.from_json(verdict.body_json)
        if said.quarantined:
            yield Paragraph(f"{counted(said.quarantined, 'row')} in quarantine.")
        if said.findings:
            yield Bullets(
                tuple(
                    f"{one.rule}{f' in {one.column}' if one.column else ''}: {one.measured}"
                    for one in said.findings
                )
            )


def _users(found: PartitionUsers) -> Iterator[Block]:
    rows: list[tuple[str, str, str, str]] = [
        ("table", name, name_some(keys, 4), content)
        for tables, content in ((found.tables, _THESE), (found.tables_of_earlier_rows, _EARLIER))
        for name, keys in tables.items()
    ]
    for one in found.trainings:
        name = f"{one.model} {one.version}".rstrip()
        content = _THESE if one.has_this_content else _EARLIER
        rows.append(
            (
                "version" if one.version else "training",
                f"{name} ({one.stage})",
                f"{one.partition}, window {one.first} to {one.last}",
                f"{content}; run {one.run_id}",
            )
        )
    rows += [("environment", name, "", content) for name, content in found.environments.items()]
    if rows:
        yield Grid(("kind", "user", "partitions", "reads"), tuple(rows))
    else:
        yield Paragraph("No table, training or environment uses this partition.")
    if found.not_asked:
        yield Paragraph(
            f"Only the newest {MOST_TRAININGS} trainings were looked up, not {found.not_asked} older ones."
        )
    if found.unknown:
        yield Paragraph(
            f"The rows of {name_some(found.unknown, 4)} are no longer known: their lake, or their ledger, is gone."
        )


def _columns(manifest: PartitionManifest, profiles: Profiles, *, draw: bool) -> Iterator[Block]:
    profile = profiles[manifest.key]
    complete = completeness(profile)
    yield Grid(
        ("column", "type", "complete", "values"),
        tuple(
            (name, manifest.schema.get(name, ""), f"{complete[name]:.1%}", _values(column))
            for name, column in profile["columns"].items()
        ),
        numbers=frozenset((2,)),
    )
    if draw:
        yield from pictures_of_columns(profiles)
        if len(profile["columns"]) > MOST_COLUMNS:
            yield Paragraph(f"Up to {MOST_COLUMNS} columns are drawn.")


def _before(
    platform: Platform,
    table: str,
    history: Mapping[str, PartitionManifest],
    profiles: Profiles,
    *,
    draw: bool,
) -> Iterator[Block]:
    late = _hours_late(platform, table, history)
    if draw:
        yield from pictures_of_rows(profiles, late)
    recent = list(history)[-10:][::-1]
    yield Grid(
        ("partition", "rows", "least complete column", "complete", "late"),
        tuple(
            (
                key,
                f"{history[key].rows:,}",
                *_least_complete(profiles[key]),
                _duration(late.get(key)),
            )
            for key in recent
        ),
        numbers=frozenset((1, 3, 4)),
    )


def _duration(hours: float | None) -> str:
    if hours is None:
        return "unknown"
    return f"{hours:,.1f} hours" if hours < MOST_HOURS else f"{hours / 24:,.0f} days"


def _least_complete(profile: Mapping[str, Any]) -> tuple[str, str]:
    complete = completeness(profile)
    if not complete:
        return "none", ""
    name = min(complete, key=lambda one: (complete[one], one))
    return ("none lacks values", "100.0%") if complete[name] == 1 else (name, f"{complete[name]:.1%}")


def _hours_late(platform: Platform, table: str, history: Mapping[str, PartitionManifest]) -> dict[str, float]:
    """Return key → hours from the end of the partition, in UTC, to the first verdict that let it pass."""
    late: dict[str, float] = {}
    for key, verdicts in platform.ledger.histories(table, history).items():
        passed = [one.at for one in verdicts if not one.blocks]
        end = _end_of(history[key].cadence, key)
        if passed and end is not None:
            late[key] = (min(passed) - end).total_seconds() / 3600
    return late


def _end_of(cadence: Any, key: str) -> datetime | None:
    try:
        return Cadence(cadence, date.min).end_of(key, "UTC")
    except KeyRefused:
        return None


def _values(column: Mapping[str, Any]) -> str:
    """Return the most frequent values of a text, or the range of numbers and times, with the mean."""
    if column.get("hidden"):
        return "(hidden)"
    if "distinct" in column:
        return ", ".join(f"{value} ({rows})" for value, rows in column["values"][:4])
    if "fewest_items" in column:
        return f"{column['fewest_items']} to {column['most_items']} items"
    if "min" not in column:
        return ""
    mean = f", mean {_short(column['mean'])}" if "mean" in column else ""
    return f"{_short(column['min'])} to {_short(column['max'])}{mean}"


def _short(value: object) -> str:
    return "" if value is None else f"{value:.5g}" if isinstance(value, float) else str(value)
