"""The log of a stream in the embedded lake: messages and offsets in one commit, few files, watermarks."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_assets.data.sources.json_messages import MessageDecoder
from ml_assets.data.sources.protocol import SourceTable
from ml_assets.data.tables.history.log import unaudited
from ml_assets.data.tables.layout import DEAD_LETTERS
from ml_assets.data.validation.contract import Contract
from ml_assets.extras.streams.kafka_log import (
    DEAD_LETTER,
    MESSAGE,
    Landing,
    LandingRules,
    PartitionProgress,
    Sections,
    StreamLog,
    StreamState,
)
from ml_assets.extras.streams.kafka_topic import Message, TopicChunk
from ml_assets.foundation.days import after, begin_of
from resources.lake import MergeConflict
from resources.lake.local import LocalStore

SALES = "datasets/sales"
HOUR, DAY = 3600 * 10**6, 24 * 3600 * 10**6
EMPTY = StreamState(topic="sales", topic_id="a", generation=1)
LATENESS = timedelta(hours=1)
RULES = LandingRules(
    topic="sales", generation=1, lateness=timedelta(days=40), reopened=timedelta(days=10**6), future=None
)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """An empty lake."""
    return LocalStore(tmp_path)


def _messages(first: int, count: int, size: int = 10) -> pl.DataFrame:
    rows = [(1, 0, first + n, bytes(str(first + n), "ascii").ljust(size, b".")) for n in range(count)]
    return pl.DataFrame(rows, MESSAGE, orient="row")


def _after(state: StreamState, read: int) -> StreamState:
    """Return the state with `read` messages of its only partition."""
    return replace(state, partitions={0: PartitionProgress(read, read)}, messages=read)


def test_messages_and_offsets_are_one_commit(store: LocalStore) -> None:
    log = StreamLog(store, SALES)
    empty = log.newest()
    assert empty.state is None
    days = {"2024-03-08": _messages(0, 3), "2024-03-09": _messages(3, 1)}
    dead = pl.DataFrame([(1, 0, 4, b"?", 1, "not JSON", "why")], DEAD_LETTER, orient="row")
    landed = log.append(empty, _after(EMPTY, 5), days | {DEAD_LETTERS: dead})
    assert landed == log.newest()
    assert landed.state == replace(_after(EMPTY, 5), chunk=1)
    for day, frame in days.items():
        assert pl.concat(log.read(landed, [day])).equals(frame)
    assert [one["reason"] for one in log.newest_dead_letters(landed, 9)] == ["why"]
    before, after = (store.read_commit(one) for one in (empty.commit_id, landed.commit_id))
    assert before.id == after.parents[0]
    assert not unaudited(store, 10)
    assert store.branches("audit-") == {}


def test_of_two_readers_at_once_one_lands_and_the_other_changes_nothing(store: LocalStore) -> None:
    log = StreamLog(store, SALES)
    empty = log.newest()
    landed = log.append(empty, _after(EMPTY, 3), {"2024-03-08": _messages(0, 3)})
    with pytest.raises(MergeConflict):
        log.append(empty, _after(EMPTY, 4), {"2024-03-09": _messages(0, 4)})
    assert log.newest() == landed
    assert store.branches("audit-") == {}


def test_a_day_has_few_files_and_its_messages_stay_in_order(store: LocalStore) -> None:
    log = StreamLog(store, SALES)
    version = log.newest()
    for chunk in range(64):
        version = log.append(
            version,
            _after(version.state or EMPTY, 20 * chunk + 20),
            {"2024-03-08": _messages(20 * chunk, 20)},
        )
    files = version.segments["2024-03-08"]
    assert len(files) <= 7
    assert pl.concat(log.read(version, ["2024-03-08"])).equals(_messages(0, 64 * 20))
    assert version.version_of(["2024-03-08"]) == "64"
    assert version.version_of([]) is None


@given(
    st.sets(st.dates(date(2024, 3, 8), date(2024, 3, 14))),
    st.sets(st.integers(0, 100)),
    st.integers(-60, 200),
    st.integers(1, 60),
    st.sampled_from(["UTC", "America/New_York"]),
)
def test_days_and_hours_are_found_as_by_looking_at_each(
    days: set[date], hours: set[int], begin: int, length: int, zone: str
) -> None:
    midnight = datetime(2024, 3, 8, tzinfo=UTC)
    of_days = {day.isoformat(): (begin_of(day, zone), begin_of(after(day), zone)) for day in days}
    of_hours = {
        f"{first:%Y-%m-%dT%H}": (first, first + timedelta(hours=1))
        for first in (midnight + timedelta(hours=n) for n in hours)
    }
    first = midnight + timedelta(hours=begin / 2)
    time = (first, first + timedelta(hours=length / 2))
    overlap = {key for key, one in (of_days | of_hours).items() if one[0] < time[1] and time[0] < one[1]}
    found = Sections([*of_days, *of_hours], zone)
    assert set(found.within(time)) == overlap
    assert all(
        found.is_cut(key, time) == (one[0] < time[0] or time[1] < one[1]) for key, one in of_hours.items()
    )


@given(
    moments=st.lists(
        st.datetimes(timezones=st.just(UTC))
        | st.sampled_from([datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)])
    ),
    zone=st.sampled_from(["UTC", "America/New_York", "Europe/Berlin", "Pacific/Kiritimati", "Etc/GMT+12"]),
    is_hourly=st.booleans(),
)
def test_what_lands_under_a_day_can_be_found_there(
    moments: list[datetime], zone: str, is_hourly: bool
) -> None:
    """One message with the zero time of Go, 0001-01-01T00:00:00Z, made the whole table unreadable for good."""
    columns = [{"name": "id", "dtype": "int64"}, {"name": "at", "dtype": "datetime"}]
    contract = Contract.model_validate({"columns": columns, "event_time": "at", "event_time_zone": zone})
    table = SourceTable(name=SALES, contract=contract, start=date(2024, 1, 1), is_hourly=is_hourly)
    decoder = MessageDecoder(contract, "at")
    landing = Landing(table, RULES, cast(Any, None), cast(Any, None), decoder)
    messages = [
        Message(0, n, b'{"id": 1, "at": "%s"}' % one.isoformat().encode()) for n, one in enumerate(moments)
    ]
    state = replace(EMPTY, partitions={0: PartitionProgress(0, len(messages))})
    chunk = TopicChunk(messages, {0: len(messages)})
    after_chunk, news = landing._sorted(state, chunk, {0: len(messages)})  # pyright: ignore[reportPrivateUsage]
    assert sum(part.height for part in news.values()) == len(messages)
    found = Sections((one for one in news if one != DEAD_LETTERS), zone)
    assert len(found.within(None)) == len(news.keys() - {DEAD_LETTERS})
    assert after_chunk.watermark is None or after_chunk.watermark_moment


def test_days_and_hours_overlap_a_time_in_their_zone(store: LocalStore) -> None:
    log, version = StreamLog(store, SALES), StreamLog(store, SALES).newest()
    for section in ("2024-03-08", "2024-03-09T04", "2024-03-09T05"):
        version = log.append(version, _after(version.state or EMPTY, 20), {section: _messages(0, 20)})
    night = (datetime(2024, 3, 9, 4, 30, tzinfo=UTC), datetime(2024, 3, 9, 5, tzinfo=UTC))
    there = version.sections("UTC")
    assert there.within(night) == ["2024-03-09T04"]
    assert version.sections("America/New_York").within(night) == ["2024-03-08", "2024-03-09T04"]
    assert there.within(None) == ["2024-03-08", "2024-03-09T04", "2024-03-09T05"]
    assert not there.is_cut("2024-03-09T04", (night[0] - timedelta(hours=1), night[1]))
    assert there.is_cut("2024-03-09T04", night)


@pytest.mark.parametrize(
    ("partitions", "lowest"),
    [
        pytest.param({}, None, id="no partition"),
        pytest.param({0: (5, 5, None)}, None, id="no row yet"),
        pytest.param({0: (5, 5, 9 * DAY), 1: (3, 3, 9 * DAY - HOUR)}, 9 * DAY - HOUR, id="the lowest"),
        pytest.param({0: (5, 5, 9 * DAY), 1: (0, 3, None)}, None, id="one is not read at all"),
        pytest.param({0: (5, 5, 9 * DAY), 1: (0, 0, None)}, 9 * DAY, id="one is empty"),
        pytest.param({0: (5, 5, 9 * DAY), 1: (3, 3, 7 * DAY)}, 9 * DAY, id="one is idle"),
        pytest.param({0: (5, 5, 9 * DAY), 1: (2, 3, 7 * DAY)}, 7 * DAY, id="one is behind"),
    ],
)
def test_the_watermark_is_the_lowest_progress_less_the_lateness(
    partitions: dict[int, tuple[int, int, int | None]], lowest: int | None
) -> None:
    progress = {number: PartitionProgress(*one) for number, one in partitions.items()}
    state = EMPTY.advanced(progress, LATENESS)
    assert state.watermark == (None if lowest is None else lowest - HOUR)
    assert replace(EMPTY, watermark=99 * DAY).advanced(progress, LATENESS).watermark == 99 * DAY


def test_the_state_reads_itself_back() -> None:
    state = replace(
        EMPTY,
        dead={"late": 2},
        partitions={11: PartitionProgress(5, 7, DAY), 2: PartitionProgress(0, 0)},
        watermark=DAY,
        read_at="2024-03-08T00:00:00+00:00",
    )
    assert StreamState.from_json(state.to_json()) == state
    assert state.watermark_moment == datetime(1970, 1, 2, tzinfo=UTC)
