"""Rows behind the weights of a version: its window, their inputs, and the same for the version that it began with.

Here: finding the rows, from an immutable commit. Not here: their current verdicts (`tables.guard`), promotion in spite
of rejected rows (`promotion`).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from ml_assets.data.tables.guard import Contents, contents_behind
from ml_assets.data.tables.reader import PartitionMissing, TableReader
from resources.lake import ObjectNotFound, RefNotFound, VersionedStore
from resources.ledger import ModelLog, TrainedOn, evaluation_name
from resources.words import name_some

NAMED = 3
"""Rejected partitions that a sentence names. It counts the others."""


class InputsUnknown(Exception):
    """The training inputs of a version cannot be found any more. The message has the reason."""


class InputsRejected(Exception):
    """Inputs of a version were rejected after it was trained."""

    def __init__(self, refused: Mapping[str, str]) -> None:
        """Compose the message from `refused`: `table key` → reason."""
        super().__init__(in_words(refused))
        self.refused = refused


def in_words(refused: Mapping[str, str], most: int = NAMED) -> str:
    """Return the first `most` of `refused` (`table key` → reason) in words, and the number of the others."""
    return name_some([f"{what} {why}" for what, why in refused.items()], most)


def contents_of(lake: VersionedStore, log: ModelLog, window: TrainedOn) -> Contents:
    """Return all rows behind weights that were trained on `window`.

    If a training began with the weights of another version, the rows behind that version count, too, and so on. Raises
    `InputsUnknown` if the lake no longer holds the window, or the ledger lacks the evaluation of such a version.
    """
    found: dict[str, set[tuple[str, str]]] = defaultdict(set)
    seen: set[str] = set()
    while True:
        try:
            reader = TableReader(lake, window.commit)
            here = contents_behind(reader, window.table, keys_of(reader, window))
        except (RefNotFound, ObjectNotFound, PartitionMissing) as error:
            raise InputsUnknown(
                f"the lake no longer holds {window.table} at commit {window.commit[:12]}, which it was trained on"
            ) from error
        for table, rows in here.items():
            found[table] |= rows
        if not window.begins_with or window.begins_with in seen:
            return found
        seen.add(window.begins_with)
        row = log.evaluation(window.begins_with)
        if row is None:
            raise InputsUnknown(
                f"the ledger lacks evaluation {evaluation_name(window.begins_with)} of the version it began with: it "
                "is another ledger, or an older copy"
            )
        window = row.trained_on


def keys_of(reader: TableReader, window: TrainedOn) -> Sequence[str]:
    """Return the partitions of `window`, oldest first. Partitions of another cadence between them are not part of it.

    Raises `InputsUnknown` if the lake holds another number of them, `PartitionMissing` and the errors of the lake.
    """
    keys = [key for key in reader.keys(window.table) if window.first <= key <= window.last]
    if len(keys) != window.partitions and window.last in keys:  # some have another cadence
        manifests = reader.manifests(window.table, keys)
        keys = [key for key in keys if manifests[key].cadence == manifests[window.last].cadence]
    if len(keys) != window.partitions:
        raise InputsUnknown(
            f"the lake holds {len(keys)} partitions of {window.table} at commit {window.commit[:12]}, but it "
            f"was trained on {window.partitions}"
        )
    return keys
