"""Specification of a snapshot: the partitions of each split, and the columns.

Values only, made from a pipeline's configuration. Not here: choosing rows of a partition (row_choice), writing the
files (builder), reading them (split_reader).
"""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Self

from ml_assets.data.snapshots.columns import columns_read
from ml_assets.data.snapshots.split_reader import SPLITS, SnapshotError, SplitName
from ml_assets.foundation.objective_facts import ObjectiveName, facts_of


class SplitRefused(SnapshotError):
    """The splits overlap, or the window has too few partitions for them."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """Partition keys of each split, oldest first. A partition is in at most one of them."""

    train: tuple[str, ...]
    validation: tuple[str, ...]
    holdout: tuple[str, ...]

    def __post_init__(self) -> None:
        twice = [key for key, times in Counter(self.keys).items() if times > 1]
        if twice:
            raise SplitRefused(f"partitions {twice[:5]} are listed twice: list each once, in one split")
        for name in SPLITS:
            if not getattr(self, name):
                raise SplitRefused(f"the {name} split has no partition: give each split at least one")

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of all splits, oldest split first."""
        return self.train + self.validation + self.holdout

    @property
    def split_of(self) -> dict[str, SplitName]:
        """Partition key → split."""
        keys = {"train": self.train, "validation": self.validation, "holdout": self.holdout}
        return {key: name for name in SPLITS for key in keys[name]}

    @property
    def config_hash(self) -> str:
        """SHA-256, 64 hex digits, of the keys of each split."""
        canonical = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


def split_by_time(keys: Sequence[str], *, train: int, validation: int, holdout: int) -> Split:
    """Split `keys` by time: the newest `holdout` keys, the `validation` keys before them, the `train` keys before both.

    `keys` are in order of time. Keys older than the three splits are left out. Raises `SplitRefused` if there are too
    few.
    """
    for name, size in (("train", train), ("validation", validation), ("holdout", holdout)):
        if size < 1:
            raise SplitRefused(f"the {name} split has {size} partitions: give each split at least one")
    needed = train + validation + holdout
    if len(keys) < needed:
        raise SplitRefused(
            f"train {train} + validation {validation} + holdout {holdout} need {needed} partitions; "
            f"the window has {len(keys)}"
        )
    window = tuple(keys[-needed:])
    return Split(train=window[:train], validation=window[train:-holdout], holdout=window[-holdout:])


@dataclass(frozen=True, kw_only=True)
class Cutoffs:
    """UTC moment for each split by which its labels must have been known. Rows with a later label are left out."""

    train: datetime
    """Start of validation, or earlier: a model that is selected on validation rows was trained by then."""
    validation: datetime
    """Start of the holdout, or earlier: a model that is measured on the holdout was selected by then."""
    holdout: datetime
    """End of the window: an evaluation at that moment could not have used later labels."""

    def __post_init__(self) -> None:
        for name, moment in self.by_split.items():
            if moment.utcoffset() != timedelta(0):
                raise SnapshotError(
                    f"cutoff {moment.isoformat()} of the {name} split must be in UTC: give it tzinfo=timezone.utc"
                )
        if not self.train <= self.validation <= self.holdout:
            raise SnapshotError(f"cutoffs must be in the order of the splits: {self.in_words}")

    @classmethod
    def all_at(cls, moment: datetime) -> Self:
        """Return the same cutoff for all splits, for rows whose labels are known at once."""
        return cls(train=moment, validation=moment, holdout=moment)

    @property
    def by_split(self) -> dict[SplitName, datetime]:
        """Split → cutoff."""
        return {"train": self.train, "validation": self.validation, "holdout": self.holdout}

    @property
    def in_words(self) -> dict[SplitName, str]:
        """Split → cutoff as ISO 8601."""
        return {name: moment.isoformat() for name, moment in self.by_split.items()}


@dataclass(frozen=True, kw_only=True)
class InputColumns:
    """Columns of the feature table that a model reads, to be fitted."""

    numeric: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    min_count: int = 20
    """Smallest number of training rows of a category. A rarer category counts as unknown."""


@dataclass(frozen=True, kw_only=True)
class RowSpec:
    """Roles of the feature table's columns, and rules for the rows that may be taken."""

    partition: str
    """Column with the partition key of a row (string or date)."""
    label: str
    """Column of the label, a number or boolean, or a text if it is a class; rows without a label are left out."""
    label_known_at: str
    """Column with the UTC time at which the label became known."""
    cutoffs: Cutoffs
    """Cutoffs by which labels must have been known."""
    blob: str = ""
    """Binary column with a blob of 10 KB or more per row, which the pipeline's `decode` reads. Rows without a blob
    are left out. Empty if rows have no blobs."""
    vocabulary: int = 0
    """Number of token ids that `decode` may return; 0 if rows are not texts."""
    objective: ObjectiveName | None = None
    """Objective that reads the labels. It says which labels are allowed, and needs two different labels in the
    training rows. None if labels are not read, for example in self-supervised training.
    """
    group: str | None = None
    """Column that names the list of a row; None if rows do not form lists. The rows of a list are in one partition,
    and stay together in training."""
    weight: str | None = None
    """Column with the weight of a row, from 0; None if each row counts once. Rows of weight 0 are left out."""
    primary_key: tuple[str, ...] = ()
    """Columns that name a row in errors."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the rules read, sorted."""
        return columns_read(
            (), self.partition, self.label, self.label_known_at, self.blob, self.group, self.weight
        )

    @property
    def has_classes(self) -> bool:
        """True if labels are classes, not numbers."""
        return self.objective is not None and facts_of(self.objective).has_classes

    @property
    def has_levels(self) -> bool:
        """True if a model's output has a level and a spread that follow from the labels (`LabelState`)."""
        return self.objective is not None and facts_of(self.objective).estimates_label

    @property
    def has_tokens(self) -> bool:
        """True if rows are texts, whose labels are numbers of tokens."""
        return self.objective is not None and facts_of(self.objective).has_tokens
