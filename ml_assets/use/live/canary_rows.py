"""Rows that champion and canary answered since the canary began: each entity once, with its first row.

Chance assigns entities, not requests, so each entity counts once. Here: the choice and the order of rows, and their
labels of the table. Not here: the comparison (`comparison`), what an earlier look has counted (`canary_record`), the
log (`serving.request_log`).
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import polars as pl
from pydantic import BaseModel, ConfigDict

from ml_assets.data.tables.reader import TableReader
from ml_assets.model.steps.spec import PipelineSpec
from ml_assets.use.live.comparison import Labelled, Requests
from ml_assets.use.live.key_join import PLACE, key_in, labelled_rows
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
    weight = features.weight
    joined = labelled_rows([one.key for one in right], spec, reader, [] if weight is None else [weight])
    if joined.is_empty():
        return FoundLabels(rows=None, waiting=tuple(right), left_out=left_out)
    joined = joined.select(
        pl.col(PLACE).alias("place"),
        pl.col(features.label).alias("label"),
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
