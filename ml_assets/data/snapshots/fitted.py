"""Fitted state of a snapshot, from its file. Not here: fitting (`builder`); training workers need no such state."""

from ml_assets.data.features.encoding import FittedState
from ml_assets.data.snapshots.split_reader import FITTED, REBUILD, ShardChanged, Snapshot


def fitted_of(snapshot: Snapshot) -> FittedState:
    """Return the scales, vocabularies and classes of a snapshot.

    Raises `ShardChanged` if the file is not the one whose digest the manifest has: the model was trained on rows that
    the original encoded.
    """
    file = snapshot.folder / FITTED
    try:
        fitted = FittedState.from_json(file.read_text())
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ShardChanged(f"{file} cannot be read: {error}. {REBUILD}") from error
    if fitted.digest != snapshot.fitted_digest:
        raise ShardChanged(
            f"{file} was altered: the manifest says digest {snapshot.fitted_digest[:12]}…, its content gives "
            f"{fitted.digest[:12]}…. {REBUILD}"
        )
    return fitted
