"""Dead letters of a stream as a person sees them: on the asset's page, and in a terminal."""

from collections.abc import Sequence
from dataclasses import dataclass

from ml_assets.data.sources.stream_log import LogVersion, StreamLog
from ml_assets.data.validation.contract import Contract

HIDDEN = "(hidden)"
_SHOWN_BYTES = 200


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """A message that is no row."""

    topic: str
    partition: int
    offset: int
    reason: str
    bytes: int
    """Size of the whole message."""
    message: str
    """First bytes of it; `HIDDEN` if the contract has a sensitive column."""


def newest_dead_letters(
    log: StreamLog, version: LogVersion, contract: Contract | None, count: int
) -> Sequence[DeadLetter]:
    """Return the newest dead letters, the newest first. Without a contract, no bytes are shown."""
    topic = version.state.topic if version.state else ""
    is_hidden = contract is None or any(column.sensitive for column in contract.by_name.values())
    return [
        DeadLetter(
            topic=topic,
            partition=one["partition"],
            offset=one["offset"],
            reason=one["reason"],
            bytes=one["size"],
            message=HIDDEN if is_hidden else (one["value"] or b"")[:_SHOWN_BYTES].decode(errors="replace"),
        )
        for one in log.newest_dead_letters(version, count)
    ]
