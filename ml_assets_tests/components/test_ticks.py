"""Ticks cost nothing if nothing moved, and request exactly what they would request without that shortcut."""

import ast
import json
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ml_assets.components import Dataset
from ml_assets.components.dataset import new_data_sensor
from ml_assets.components.metadata import RANGE_END, RANGE_START
from ml_assets.components.sensors import ticks
from ml_assets.components.sensors.ticks import Tick, TickAnswer, TickIncomplete, ticking_sensor
from ml_assets.data.sources.kinds import open_source, read_partitions
from ml_assets.data.tables.declared import NOTHING_DECLARED, DeclaredTable, DeclaredTables
from ml_assets.data.tables.history.retention import Retired, retire
from ml_assets.data.tables.publish.publish import publish
from ml_assets.data.tables.publish.rejected import accept_partition
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.spec import PublishingRun
from ml_assets_tests.components.installation import component, key_of
from ml_assets_tests.sources.sales import DATASET, DAYS, SALES, rows
from resources.ledger import NothingToAccept, Person
from resources.platform import Platform
from resources.settings import Settings

COMPONENTS = Path(ticks.__file__).parents[1]
INSTANCE = dg.DagsterInstance.ephemeral()
BEGIN = datetime(2024, 3, 9, tzinfo=UTC)
"""The first day of the sales is not over in New York."""

Event = tuple[str, int, int]
"""Name of the event, number of a day, and a content or a number of hours."""
EVENTS = st.tuples(
    st.sampled_from(
        ["file", "file", "file gone", "run", "run", "run all", "accept", "retire", "wait", "wait"]
    ),
    st.integers(0, len(DAYS) - 1),
    st.integers(0, 30),
)


class Sales:
    """A home whose sales come from files, with a sensor that lives on and ones that know nothing."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self._files = folder / "files"
        self._files.mkdir()
        source = {"kind": "file", "path": f"{self._files}/%Y-%m-%d.parquet", "watch": {"retry_seconds": 7200}}
        dataset = component(Dataset, DATASET, source=source, **changes)
        assert isinstance(dataset, Dataset)
        self.spec, self.table = dataset.spec, dataset.table
        self.platform = Platform(Settings(home=folder / "home"))
        self._tables = DeclaredTables([DeclaredTable.of(self.table)])
        self.now = BEGIN
        self._living = self._sensor()
        self._cursors: dict[str, str | None] = {}

    def _sensor(self) -> dg.SensorDefinition:
        return new_data_sensor(self.spec, key_of(SALES))

    def tick(self) -> list[str]:
        """Evaluate both sensors, which must request the same; return the requested days."""
        living = self._evaluate("living", self._living)
        fresh = self._evaluate("fresh", self._sensor())
        assert living == fresh
        return living

    def _evaluate(self, name: str, sensor: dg.SensorDefinition) -> list[str]:
        context = dg.build_sensor_context(
            instance=INSTANCE,
            resources={"platform": self.platform, "tables": self._tables},
            cursor=self._cursors.get(name),
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ticks, "moment", lambda: self.now)
            answer: Any = sensor(context)
        self._cursors[name] = answer.cursor
        ranges = [(one.tags[RANGE_START], one.tags[RANGE_END]) for one in answer.run_requests or ()]
        return [day for first, last in ranges for day in DAYS if first <= day <= last]

    def play(self, event: Event) -> None:
        """Let something happen between two ticks."""
        what, number, value = event
        day, lake, ledger = DAYS[number], self.platform.lake, self.platform.ledger
        file = self._files / f"{day}.parquet"
        match what:
            case "file":
                frame = rows(day).with_columns(price=pl.lit(float(value)))
                # A sale that comes twice breaks the primary key.
                (pl.concat([frame, frame]) if value % 3 == 0 else frame).write_parquet(file)
            case "file gone":
                file.unlink(missing_ok=True)
            case "run":
                self.read([day])
            case "run all":
                self.read(DAYS)
            case "accept":
                with suppress(NothingToAccept):
                    accept_partition(lake, ledger, SALES, day, Person.unchecked("ada"), "fine")
            case "retire" if day in TableReader.at(lake).keys(SALES):
                retire(lake, ledger, Retired(table=SALES, keys=(day,), size=0), "ada")
            case "wait":
                self.now += timedelta(hours=value)
            case _:
                pass

    def read(self, days: Sequence[str]) -> None:
        """Read and publish days, as a run does. Some may fail or be rejected."""
        with closing(open_source(self.spec.source, self.spec.source_table, self.platform)) as source:
            incoming = read_partitions(source, self.table.cadence, days, self.spec.require_closed)
            run = PublishingRun(run_id="ticks")
            publish(self.platform.lake, self.platform.ledger, self.table, incoming, run, NOTHING_DECLARED)


def _plays(events: Sequence[Event]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sales = Sales(Path(folder))
        for event in events:
            sales.play(event)
            sales.tick()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(events=st.lists(EVENTS, max_size=10))
def test_a_sensor_that_lives_on_requests_what_a_fresh_one_requests(events: list[Event]) -> None:
    _plays(events)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(events=st.lists(EVENTS, max_size=40))
def test_long_histories_request_what_a_fresh_sensor_requests(events: list[Event]) -> None:
    _plays(events)


def test_days_close_and_retries_fall_due_without_any_change(tmp_path: Path) -> None:
    sales = Sales(tmp_path)
    for number in range(2):
        sales.play(("file", number, 1))
    assert sales.tick() == [], "no day is over"
    sales.now = BEGIN + timedelta(hours=5)  # midnight in New York
    assert sales.tick() == [DAYS[0]]
    assert sales.tick() == []
    sales.now += timedelta(seconds=7199)
    assert sales.tick() == []
    sales.now += timedelta(seconds=1)
    assert sales.tick() == [DAYS[0]], "its run failed"
    sales.read([DAYS[0]])
    assert sales.tick() == []
    sales.now = BEGIN + timedelta(days=1, hours=4)  # summer time begins a day later
    assert sales.tick() == []
    sales.now += timedelta(hours=1)
    assert sales.tick() == [DAYS[1]]


def test_a_clock_that_was_ahead_delays_no_request(tmp_path: Path) -> None:
    """A machine that begins with a wrong clock ticks once in another year. Its run fails."""
    sales = Sales(tmp_path)
    sales.play(("file", 0, 1))
    sales.now = BEGIN + timedelta(days=4000)
    assert sales.tick() == [DAYS[0]]
    sales.now = BEGIN + timedelta(hours=6)
    assert sales.tick() == [DAYS[0]], "its time of a request is no time to wait from"
    assert sales.tick() == []
    sales.now += timedelta(seconds=7200)
    assert sales.tick() == [DAYS[0]]
    sales.read([DAYS[0]])
    assert sales.tick() == []


def test_partitions_that_are_not_retained_are_not_requested_again(tmp_path: Path) -> None:
    """After each `ml-assets gc`, the sensor requested them again."""
    sales = Sales(tmp_path, retain={"partitions": 2})
    sales.now = BEGIN + timedelta(days=30)
    for number in range(len(DAYS)):
        sales.play(("file", number, 1))
    assert sales.tick() == DAYS, "nothing says yet which are the newest"
    sales.read(DAYS)
    for number in range(3):
        sales.play(("retire", number, 0))
    assert sales.tick() == []
    sales.play(("retire", 3, 0))
    assert sales.tick() == [DAYS[3]], "two days are retained, whatever is missing"


def test_an_unchanged_tick_reads_no_manifest_and_asks_no_guard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sales = Sales(tmp_path)
    for number in range(len(DAYS)):
        sales.play(("file", number, 1))
    sales.read(DAYS)
    sales.now = BEGIN + timedelta(days=30)
    assert sales.tick() == []
    fetched: list[Sequence[str]] = []
    fetch, listed = type(sales.platform.lake).fetch, type(sales.platform.lake).list

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            fetched.append(arguments[1:])
            return real(*arguments)

        return call

    monkeypatch.setattr(type(sales.platform.lake), "fetch", counted(fetch))
    monkeypatch.setattr(type(sales.platform.lake), "list", counted(listed))
    assert sales._evaluate("living", sales._living) == []
    assert fetched == []
    sales.play(("file", 2, 2))
    sales.read([DAYS[2]])
    fetched.clear()
    assert sales._evaluate("living", sales._living) == []
    assert {part for call in fetched for part in str(call).split("'") if "2024-" in part} <= {
        f"_manifests/{SALES}/{DAYS[2]}.json",
        f"{SALES}/date={DAYS[2]}/",
    }, "only the day that changed is looked up"


Moment = tuple[int, int, bool]
"""Fact that the answer depends on, seconds that pass, and True if the definitions are loaded anew."""


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-9, 5), st.booleans()), max_size=30))
@settings(deadline=None)
def test_an_answer_holds_until_a_fact_or_its_time_changes_it(history: list[Moment]) -> None:
    """The sensor requests the fact whenever three seconds of its clock are over, and counts its evaluations.

    Somebody may set the clock back: then what the sensor knows of times does not hold.
    """
    evaluated: list[float] = []
    fact = 0

    def evaluate(tick: Tick) -> TickAnswer:
        tick.saw(fact=fact)
        now = int(tick.now.timestamp())
        evaluated.append(now)
        return TickAnswer(
            said=f"{fact} at {now // 3}",
            own=str(now // 3),
            again_at=datetime.fromtimestamp((now // 3 + 1) * 3, UTC),
        )

    def loaded() -> dg.SensorDefinition:
        return ticking_sensor(evaluate, name="thirds", every_seconds=30, description="")

    sensor, cursor, now, seen, evaluated_at = loaded(), None, 1000, None, 0
    for fact, seconds, is_anew in history:
        now += seconds
        sensor = loaded() if is_anew else sensor
        before = len(evaluated)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ticks, "moment", lambda now=now: datetime.fromtimestamp(now, UTC))
            answer: Any = sensor(dg.build_sensor_context(instance=INSTANCE, cursor=cursor))
        cursor = answer.cursor
        assert f"{fact} at {now // 3}" in str(answer.skip_reason)
        assert json.loads(cursor)["own"] == str(now // 3)
        is_new = seen != (fact, now // 3) or is_anew or now < evaluated_at
        assert len(evaluated) - before == int(is_new), "evaluated exactly when something changed"
        seen, evaluated_at = (fact, now // 3), evaluated[-1]


@pytest.mark.parametrize("cursor", ["", "{}", "2024-01-01", '{"canary": 1, "at": 0}', "[", "null"])
def test_a_cursor_that_is_none_of_ours_is_as_no_cursor(cursor: str) -> None:
    """Somebody edited it on Dagster's pages, or an earlier version wrote it."""

    def evaluate(tick: Tick) -> TickAnswer:
        tick.saw()
        return TickAnswer(said=f"own {tick.own!r}", again_at=None)

    sensor = ticking_sensor(evaluate, name="plain", every_seconds=30, description="")
    answer: Any = sensor(dg.build_sensor_context(instance=INSTANCE, cursor=cursor))
    assert answer.skip_reason.skip_message == "own ''"


def test_a_sensor_that_does_not_say_what_it_saw_fails() -> None:
    sensor = ticking_sensor(
        lambda tick: TickAnswer(said="", again_at=None), name="blind", every_seconds=30, description=""
    )
    with pytest.raises(TickIncomplete, match="blind"):
        sensor(dg.build_sensor_context(instance=INSTANCE))


def test_every_sensor_goes_through_the_ticks() -> None:
    """Run status sensors follow Dagster's events, and have Dagster's cursor."""
    made = [
        str(path.relative_to(COMPONENTS.parent))
        for path in sorted(COMPONENTS.parent.rglob("*.py"))
        if _called_in(path) & {"sensor", "asset_sensor", "multi_asset_sensor", "SensorDefinition"}
    ]
    assert made == ["components/sensors/ticks.py"]


def _called_in(path: Path) -> set[str]:
    """Return the names of the attributes that a module calls, or decorates with."""
    calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    return {one.attr for one in calls if isinstance(one, ast.Attribute)}
