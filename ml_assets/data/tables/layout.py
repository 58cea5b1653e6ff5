"""Paths of a table's files in the lake, and names of its branches. No other module spells them.

    <kind>/<name>/date=2013-01-01/part-0.parquet      (`all/part-0.parquet` for a table without partitions)
    _manifests/<kind>/<name>/2013-01-01.json
    _streams/<kind>/<name>/…                          (messages of a stream: see `stream_prefix`)
    _earlier/<kind>/<name>/2013-01-01/<until>/…       (earlier rows of a partition: see `earlier_prefix`)

A table is named by its id `"<kind>/<name>"`, for example `"datasets/flights"`. Rows set aside from it are the table
`"quarantine/datasets_flights"`.
"""

import re
import uuid
from datetime import UTC, datetime

from ml_assets.data.tables.cadence import UNPARTITIONED

DATASETS, FEATURES, QUARANTINE = "datasets", "features", "quarantine"
"""Kinds of tables. The others have the name of a model."""
MAIN = "main"
AUDIT = "audit-"
"""Prefix of every audit branch's name."""
_MANIFESTS = "_manifests"
ALL_MANIFESTS = f"{_MANIFESTS}/"
"""Path prefix of the manifests of all tables."""
UNDATED = "undated"
"""Key of the rows without a time, in a quarantine table: they belong to no partition."""
DEAD_LETTERS = "dead_letters"
"""Section of a stream for messages that are not rows."""
_STREAMS = "_streams"
_EARLIER = "_earlier"
_MOMENT = "%Y%m%dT%H%M%S%fZ"
_MANIFEST = "manifest.json"
_TABLE = re.compile(r"[a-z]\w*/[a-z]\w*", re.ASCII)


class TableNameRefused(ValueError):
    """A table id is not `<kind>/<name>` in lower-case words."""


def check_table(table: str) -> str:
    """Return `table` unchanged. Raises `TableNameRefused`."""
    if not _TABLE.fullmatch(table):
        raise TableNameRefused(
            f"{table!r} is not the name of a table: write <kind>/<name> in letters, digits and _, as in "
            f"datasets/flights"
        )
    return table


def quarantine_of(table: str) -> str | None:
    """Return the table id of the rows set aside from `table`; None for tables that set none aside.

    `datasets/orders` has `quarantine/datasets_orders`, with the same partitions, and `UNDATED`.
    """
    kind, _, name = check_table(table).partition("/")
    return f"{QUARANTINE}/{kind}_{name}" if kind in (DATASETS, FEATURES) else None


def data_prefix(table: str) -> str:
    """Return the path prefix of all data files of `table`."""
    return f"{check_table(table)}/"


def manifest_prefix(table: str) -> str:
    """Return the path prefix of all manifests of `table`."""
    return f"{_MANIFESTS}/{check_table(table)}/"


def partition_prefix(table: str, key: str) -> str:
    """Return the path prefix of the data files of a partition."""
    folder = key if key in (UNPARTITIONED, UNDATED) else f"date={key}"
    return f"{check_table(table)}/{folder}/"


def part_path(table: str, key: str, part: int) -> str:
    """Return the path of one data file of a partition."""
    return f"{partition_prefix(table, key)}part-{part}.parquet"


def manifest_path(table: str, key: str) -> str:
    """Return the path of the manifest of a partition."""
    return f"{manifest_prefix(table)}{key}.json"


def stream_prefix(table: str) -> str:
    """Return the path prefix of the messages from which `table` is made, of their dead letters and of their offsets."""
    return f"{_STREAMS}/{check_table(table)}/"


def stream_state_path(table: str) -> str:
    """Return the path of the offsets up to which a stream was read."""
    return f"{stream_prefix(table)}state.json"


def segment_path(table: str, section: str, number: int) -> str:
    """Return the path of a file of messages. `section`: a day such as `2013-01-01`, or `DEAD_LETTERS`."""
    folder = section if section == DEAD_LETTERS else f"date={section}"
    return f"{stream_prefix(table)}{folder}/{number:012d}.parquet"


def section_of_segment(path: str) -> tuple[str, int] | None:
    """Return section and number of a file of messages; None for another path of a stream."""
    _, _, _, folder, *rest = path.split("/")
    return (folder.removeprefix("date="), int(rest[0].removesuffix(".parquet"))) if rest else None


def earlier_prefix(table: str, key: str | None = None) -> str:
    """Return the path prefix of the earlier versions of `table`, or of its partition `key`."""
    return f"{_EARLIER}/{check_table(table)}/" + ("" if key is None else f"{key}/")


def earlier_path(path: str, until: datetime) -> str:
    """Return the path at which an object of a partition is kept that main held at `path` until the moment `until`."""
    place = partition_of(path)
    if place is None:
        raise ValueError(f"{path} is no object of a partition")
    name = _MANIFEST if path.startswith(ALL_MANIFESTS) else path.rpartition("/")[2]
    return f"{earlier_prefix(*place)}{until.astimezone(UTC).strftime(_MOMENT)}/{name}"


def of_earlier(path: str) -> tuple[str, datetime, str]:
    """Return key, moment and former path of an object of an earlier version."""
    _, kind, name, key, until, file = path.split("/")
    table = f"{kind}/{name}"
    part = file.removeprefix("part-").removesuffix(".parquet")
    former = manifest_path(table, key) if file == _MANIFEST else part_path(table, key, int(part))
    return key, datetime.strptime(until, _MOMENT).replace(tzinfo=UTC), former


def key_of_part(path: str) -> str:
    """Return the partition key in the path of a data file."""
    return path.split("/")[2].removeprefix("date=")


def partition_of(path: str) -> tuple[str, str] | None:
    """Return table id and key of the partition to which a data file or a manifest belongs; None for other paths."""
    parts = path.split("/")
    if parts[0] == _MANIFESTS:
        return ("/".join(parts[1:3]), parts[3].removesuffix(".json")) if len(parts) == 4 else None
    table = "/".join(parts[:2])
    is_part = len(parts) == 4 and parts[3].startswith("part-") and _TABLE.fullmatch(table) is not None
    return (table, key_of_part(path)) if is_part else None


def is_undated(path: str) -> bool:
    """Return True for an object of the rows without a time of a table."""
    table, key = partition_of(path) or ("", "")
    return key == UNDATED and table.startswith(f"{QUARANTINE}/")


def audit_branch(table: str, first_key: str, run_id: str) -> str:
    """Return a new branch name on each call. Partitions wait on that branch for their audit.

    Two processes may have the same run id, when a run was resumed while its first worker still lives. No two processes
    share a branch, so none commits rows of another. lakeFS accepts only letters, digits, _ and - in the name.
    """
    run = re.sub(r"\W", "", run_id)[:8] or "norun"
    return f"{AUDIT}{check_table(table).replace('/', '-')}-{first_key}-{run}-{uuid.uuid4().hex[:12]}"
