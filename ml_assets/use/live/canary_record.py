"""Record of a canary's watch: which rows of the log have counted, and the evidence after them.

One JSON file among the artifacts for each pair of canary and champion and each set of watched metrics, replaced as a
whole. A look takes only files of the log that no look before has counted, counts their rows, and replaces the record;
so rows count once, in the order in which they became visible. A damaged file is tried again at each look. A process
that is killed before it replaces the record has counted nothing.

Chance assigns entities, not requests, so each entity counts once, with its first row since the canary began. Not here:
the comparison (`comparison`), who may look (`canary_watch`), the log (`serving.request_log`).
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from logging import getLogger

import numpy as np
import polars as pl
from pydantic import BaseModel, ConfigDict, ValidationError

from ml_assets.data.tables.reader import TableReader
from ml_assets.model.release.rules import CanarySection
from ml_assets.model.steps.spec import PipelineSpec
from ml_assets.use.live.comparison import Labelled, MetricState, Requests, compare
from ml_assets.use.live.logged_rows import PLACE, key_in, rows_of_keys
from ml_assets.use.serving.request_log import LATE_DAYS, day_folder, files_after, newest_of, read_files
from resources.artifacts import Artifacts, ArtifactsRefused, ArtifactsUnavailable
from resources.ledger import Promotion


class WaitingRow(BaseModel):
    """Answered row whose label is not known yet."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    is_canary: bool
    at: datetime
    """Arrival of its request."""
    key: tuple[str | None, ...]
    """Text of each column of the feature table's primary key."""
    prediction: tuple[float | None, ...]
    """Numbers of the prediction; None for one that is not finite."""
    sender: str = ""
    """Name of the client that asked."""


@dataclass(frozen=True, kw_only=True)
class FirstRows:
    """First rows of entities that no earlier look has seen."""

    rows: pl.DataFrame
    """Columns of the log, in the order in which they count."""
    entities: tuple[int, ...]
    """Hash of the entity of each row."""
    repeated: int
    """Further rows of entities, which do not count."""


@dataclass(frozen=True, kw_only=True)
class FoundLabels:
    """Waiting rows that have a label by now."""

    rows: Labelled | None
    """None if no row has one."""
    waiting: tuple[WaitingRow, ...]
    """Rows without one, in the order of their arrival."""
    left_out: Mapping[str, int]
    """Reason → number of rows that never count."""


def first_rows(log: pl.DataFrame, champion: Promotion, canary: Promotion, seen: Collection[int]) -> FirstRows:
    """Return the rows of `log` that count: the first of each entity that is not `seen`, by order of arrival.

    Only rows count that these two bundles answered since both promotions. A row that the champion answered because the
    canary failed counts for the canary alone. A row that neither could answer is no evidence.
    """
    digests = {"production": champion.bundle_digest, "canary": canary.bundle_digest}
    rows = log.filter(
        (pl.col("at") >= max(champion.at, canary.at))
        & pl.col("role").is_in(list(digests))
        & (pl.col("role") == pl.col("assigned"))
        & pl.col("entity").is_not_null()
        & pl.col("counts")
        & (pl.col("bundle_digest") == pl.col("role").replace(digests))
    ).sort("at", "request_id", "place")
    first = rows.unique("entity", keep="first", maintain_order=True)
    hashes = [_hash(one) for one in first["entity"]]
    known = set(seen)
    is_new = [one not in known for one in hashes]
    chosen = first.filter(pl.Series(is_new, dtype=pl.Boolean))
    return FirstRows(
        rows=chosen,
        entities=tuple(one for one, new in zip(hashes, is_new, strict=True) if new),
        repeated=len(rows) - len(chosen),
    )


def requests_of(rows: pl.DataFrame) -> Requests:
    """Return the requests of first rows.

    A row fails by its own error, not by that of another row of its list. The latency of a list grows with its rows, and
    a side with a small share has few of them, so only requests with one row have a latency to compare.
    """
    is_compared = pl.col("error").is_null() & (pl.col("request_rows") == 1)
    latency = rows.select(pl.when(is_compared).then(pl.col("latency_us") / 1000).otherwise(float("nan")))
    return Requests(
        is_canary=(rows["role"] == "canary").to_numpy(),
        failed=rows["error"].is_not_null().to_numpy(),
        latency_ms=latency.to_series().to_numpy(),
    )


def waiting_of(rows: pl.DataFrame, key: Sequence[str]) -> tuple[list[WaitingRow], Counter[str]]:
    """Return the answered rows among first rows with their values of the columns `key`, and rows that are left out by
    reason."""
    found: list[WaitingRow] = []
    left_out: Counter[str] = Counter()
    answered = rows.filter(pl.col("error").is_null() & pl.col("prediction").is_not_null())
    columns = ("role", "at", "row", "prediction", "sender")
    for role, at, text, prediction, sender in answered.select(columns).iter_rows():
        names = key_in(text, key)
        if isinstance(names, str):
            left_out[names] += 1
        else:
            numbers = tuple(None if one is None or not np.isfinite(one) else one for one in prediction)
            found.append(
                WaitingRow(is_canary=role == "canary", at=at, key=names, prediction=numbers, sender=sender)
            )
    return found, left_out


def with_room(waiting: Sequence[WaitingRow], room: int) -> tuple[WaitingRow, ...]:
    """Return the rows that find room, the first ones of each client.

    If there are too many, clients with few rows keep all of them, and the others as many as each other: rows without
    a label, which one client sends, cannot crowd out those of others.
    """
    if len(waiting) <= room:
        return tuple(waiting)
    sizes = Counter(one.sender for one in waiting)
    left, allowed = room, 0
    for clients, size in zip(range(len(sizes), 0, -1), sorted(sizes.values()), strict=True):
        allowed = left // clients
        if size > allowed:
            break
        left -= size
    kept: list[WaitingRow] = []
    taken = Counter[str]()
    for one in waiting:
        taken[one.sender] += 1
        if taken[one.sender] <= allowed or sizes[one.sender] <= allowed:
            kept.append(one)
    return tuple(kept)


def labelled_of(
    waiting: Sequence[WaitingRow], spec: PipelineSpec, reader: TableReader, classes: Sequence[str]
) -> FoundLabels:
    """Return the waiting rows that have a label in the feature table by now, by partition and then by arrival.

    `classes` are those of the label, empty for numbers. A row whose weight is not finite, or not above 0, never
    counts. A label that changes after its row counted changes nothing.
    """
    features = spec.features
    numbers = len(classes) or 1
    right = [one for one in waiting if len(one.prediction) == numbers or (not classes and one.prediction)]
    left_out = Counter[str]()
    if len(right) < len(waiting):
        left_out["have another number of predictions than the model's answer"] = len(waiting) - len(right)
    label, weight = features.label, features.weight
    columns = (label, *([] if weight is None else [weight]))
    keys = [one.key for one in right]
    joined = rows_of_keys(keys, spec, reader, columns, counts=pl.col(label).is_not_null())
    if joined.is_empty():
        return FoundLabels(rows=None, waiting=tuple(right), left_out=left_out)
    joined = joined.select(
        pl.col(PLACE).alias("place"),
        pl.col(label).alias("label"),
        *([] if weight is None else [pl.col(weight).cast(pl.Float64).alias("weight")]),
    )
    labelled = set(joined["place"])
    for reason, counts in (
        (
            "have a label that is no finite number",
            None if classes else pl.col("label").cast(pl.Float64).is_finite(),
        ),
        (
            "have a weight that is no finite number",
            pl.col("weight").is_finite().fill_null(True) if weight else None,
        ),
        ("have no weight above 0", pl.col("weight") > 0 if weight else None),
    ):
        kept = joined if counts is None else joined.filter(counts)
        if len(kept) < len(joined):
            left_out[reason] = len(joined) - len(kept)
        joined = kept
    still = tuple(one for place, one in enumerate(right) if place not in labelled)
    if joined.is_empty():
        return FoundLabels(rows=None, waiting=still, left_out=left_out)
    rows: list[WaitingRow] = [right[place] for place in joined["place"]]
    prediction = np.array([one.prediction[:numbers] for one in rows], dtype=float)
    place_of = {name: index for index, name in enumerate(classes)}
    labels = joined["label"]
    values = [place_of.get(str(one), -1) for one in labels] if classes else labels.cast(pl.Float64).to_list()
    return FoundLabels(
        rows=Labelled(
            is_canary=np.array([one.is_canary for one in rows]),
            prediction=prediction if classes else prediction[:, 0],
            label=np.array(values, dtype=float),
            weight=joined["weight"].to_numpy() if weight else None,
        ),
        waiting=still,
        left_out=left_out,
    )


def _hash(entity: str) -> int:
    return int.from_bytes(hashlib.blake2b(entity.encode(), digest_size=8).digest())


ROOT = "canary"
"""Folder of all records among the artifacts: `canary/<model>/<places of the promotions>`."""
FILES = 32
"""Files of the log that count together. A killed look repeats these at most."""
MOST_ENTITIES = 1_000_000
"""Entities that count. A canary that is not decided by then has none of the watched regressions."""
MOST_OF_CLIENT = MOST_ENTITIES // 2
"""Entities of one client that count. Nobody can use up the room of all others with entities that do not exist."""
MOST_WAITING = 100_000
"""Rows that wait for a label at most."""

_LOGGER = getLogger(__name__)


class CanaryRecord(BaseModel):
    """Rows that have counted, and the evidence after them."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    files: dict[str, dict[str, int]] = {}
    """Day → server → number of the newest file that has counted."""
    entities: tuple[int, ...] = ()
    """Hash of each entity that has counted."""
    of_champion: int = 0
    """Entities that the champion answered."""
    of_canary: int = 0
    of_clients: dict[str, int] = {}
    """Client → its entities that have counted."""
    crowded: int = 0
    """Rows of clients beyond `MOST_OF_CLIENT` entities, which do not count."""
    repeated: int = 0
    """Further rows of these entities, which do not count."""
    metrics: tuple[MetricState, ...] = ()
    waiting: tuple[WaitingRow, ...] = ()
    labels_at: str = ""
    """Commit of the lake that has no label for the waiting rows."""
    left_out: dict[str, int] = {}
    """Reason → rows that have no part in metrics of labels."""
    labels_fault: str = ""
    """Reason why the last look could not count labels; empty if it could."""
    damaged: dict[str, dict[str, str]] = {}
    """Day → damaged file of the log → what is wrong with it. It has not counted."""


@dataclass(frozen=True, kw_only=True)
class RecordPlace:
    """Canary whose record this is, and the rules that it was begun with."""

    artifacts: Artifacts
    model: str
    champion: Promotion
    canary: Promotion
    section: CanarySection

    @property
    def folder(self) -> str:
        return f"{ROOT}/{self.model}/{self.canary.place}-{self.champion.place}"

    @property
    def file(self) -> str:
        """File in the folder. Other metrics or another alpha begin another record."""
        rules = self.section.model_dump_json(include={"watch", "alpha"})
        return f"{hashlib.sha256(rules.encode()).hexdigest()[:16]}.json"

    @property
    def _address(self) -> str:
        return f"{self.artifacts.address(self.folder)}/{self.file}"

    def read(self) -> CanaryRecord:
        """Return the record; an empty one before the first look. Raises `ArtifactsError`."""
        if not self.artifacts.exists(self.folder, self.file):
            return CanaryRecord()
        folder = self.artifacts.pull(self.folder, [self.file])
        try:
            return CanaryRecord.model_validate_json((folder / self.file).read_bytes())
        except OSError as error:
            raise ArtifactsUnavailable(f"{self._address} could not be read: {error}") from error
        except ValidationError as error:
            raise ArtifactsRefused(
                f"{self._address} is no record of a canary: restore it, or remove it; then the next look counts the "
                "log of requests from the beginning"
            ) from error

    def write(self, record: CanaryRecord) -> None:
        """Replace the record as a whole. Raises `ArtifactsError`."""
        with self.artifacts.create(self.folder, self.file) as file:
            file.write(record.model_dump_json().encode())


def look(
    place: RecordPlace,
    key: tuple[str, ...],
    labels: Callable[[CanaryRecord], tuple[str, FoundLabels] | None],
    now: datetime | None = None,
) -> CanaryRecord:
    """Count what became visible since the last look, and return the record after it. One process at a time may look.

    `key` is the primary key of the feature table, empty if no metric needs labels. `labels` gets the record and returns
    the labels that the waiting rows have by now with the commit of the lake that has them; None if they were not looked
    up. If it raises, or its rows cannot be compared, they wait, and `labels_fault` has the reason. Raises
    `ArtifactsError`.
    """
    record = place.read()
    for day, files in _new_files(place, record, now or datetime.now(UTC)):
        record = _with_files(place, record, day, files, key)
        place.write(record)
    after = _with_labels(place, record, labels)
    if after != record:
        place.write(after)
    return after


def _with_labels(
    place: RecordPlace,
    record: CanaryRecord,
    labels: Callable[[CanaryRecord], tuple[str, FoundLabels] | None],
) -> CanaryRecord:
    update: dict[str, object] = {"labels_fault": ""}
    try:
        if record.waiting and (found := labels(record)) is not None:
            commit, labelled = found
            update |= {
                "metrics": compare(place.section, record.metrics, labelled=labelled.rows),
                "waiting": labelled.waiting,
                "labels_at": commit,
                "left_out": dict(Counter(record.left_out) + Counter(labelled.left_out)),
            }
    except Exception as error:  # whatever is wrong with labels, errors and latency still decide
        _LOGGER.exception("metrics of labels of %s are not compared", place.model)
        update["labels_fault"] = f"{type(error).__name__}: {error}"
    return record.model_copy(update=update)


def _new_files(place: RecordPlace, record: CanaryRecord, now: datetime) -> Iterator[tuple[date, list[str]]]:
    """Yield files that have not counted, a few at a time, and files that were damaged."""
    begin = max(place.champion.at, place.canary.at).date()
    for back in range(min((now.date() - begin).days, LATE_DAYS), -1, -1):
        day = now.date() - timedelta(back)
        files = files_after(place.artifacts, place.model, day, record.files.get(day.isoformat(), {}))
        files = sorted({*files, *record.damaged.get(day.isoformat(), {})})
        for first in range(0, len(files), FILES):
            yield day, files[first : first + FILES]


def _with_files(
    place: RecordPlace, record: CanaryRecord, day: date, files: list[str], key: tuple[str, ...]
) -> CanaryRecord:
    of_day = record.damaged.get(day.isoformat(), {})
    there = place.artifacts.files(day_folder(place.model, day)) if of_day else files
    log, faults = read_files(place.artifacts, place.model, day, [one for one in files if one in there])
    faults = {file: why for file, why in of_day.items() if file not in files} | faults
    first = first_rows(log, place.champion, place.canary, record.entities)
    before = pl.col("sender").replace_strict(record.of_clients, default=0, return_dtype=pl.Int64)
    has_room = first.rows.select(before + pl.int_range(pl.len()).over("sender") < MOST_OF_CLIENT).to_series()
    room = MOST_ENTITIES - len(record.entities)
    rows = first.rows.filter(has_room).head(room)
    entities = [one for one, has in zip(first.entities, has_room, strict=True) if has][:room]
    update: dict[str, object] = {
        "files": {**record.files, day.isoformat(): newest_of(files, record.files.get(day.isoformat()))},
        "entities": (*record.entities, *entities),
        "of_clients": dict(Counter(record.of_clients) + Counter(rows["sender"])),
        "crowded": record.crowded + len(first.rows) - int(has_room.sum()),
        "of_champion": record.of_champion + len(rows.filter(role="production")),
        "of_canary": record.of_canary + len(rows.filter(role="canary")),
        "repeated": record.repeated + first.repeated,
        "metrics": compare(place.section, record.metrics, requests_of(rows)),
        "damaged": {name: of for name, of in {**record.damaged, day.isoformat(): faults}.items() if of},
    }
    if key:
        waiting, left_out = waiting_of(rows, key)
        every = (*record.waiting, *waiting)
        kept = with_room(every, MOST_WAITING)
        if len(kept) < len(every):
            left_out["found no room among the rows that wait for a label"] = len(every) - len(kept)
        update |= {
            "waiting": kept,
            "labels_at": "" if waiting else record.labels_at,
            "left_out": dict(Counter(record.left_out) + left_out),
        }
    return record.model_copy(update=update)
