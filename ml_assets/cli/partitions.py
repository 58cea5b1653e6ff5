"""Check of partitions that a person types against those of an asset, before anything runs."""

from bisect import bisect_left
from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING

from ml_assets.cli.problems import Problem

if TYPE_CHECKING:
    import dagster as dg


def typed_range(
    name: str, partitions: "dg.PartitionsDefinition | None", typed: str | None
) -> tuple[str | None, str | None]:
    """Return the first and last key of `typed`, which is `KEY`, `FIRST..LAST` or nothing. Last is None for one key.

    `Problem` names the partitions of `name`.
    """
    if partitions is None:
        if typed:
            raise Problem(f"{name} has no partitions: leave out '{typed}'")
        return None, None
    keys = partitions.get_partition_keys()
    if not typed:
        raise Problem(
            f"{name} has partitions {keys[0]} to {keys[-1]}: name a partition, or a range FIRST..LAST"
        )
    first, dots, last = typed.partition("..")
    for key in (first, last) if dots else (first,):
        require_key(name, keys, key)
    if dots and last < first:
        raise Problem(f"{name}: the range {typed} ends before it begins: write FIRST..LAST")
    return first, last if dots else None


def require_key(name: str, keys: Sequence[str], key: str) -> None:
    """Raise `Problem` with the nearest earlier key if `key` is not among `keys`, which are sorted."""
    at = bisect_left(keys, key)
    if at < len(keys) and keys[at] == key:
        return
    if not _is_date(key):
        raise Problem(
            f"{name} has no partition '{key}', which is not a date: write YYYY-MM-DD, from {keys[0]} to {keys[-1]}"
        )
    before = f"; the partition before it is '{keys[at - 1]}'" if 0 < at < len(keys) else ""
    raise Problem(f"{name} has no partition '{key}', only {keys[0]} to {keys[-1]}{before}")


def _is_date(key: str) -> bool:
    try:
        return date.fromisoformat(key).isoformat() == key
    except ValueError:
        return False
