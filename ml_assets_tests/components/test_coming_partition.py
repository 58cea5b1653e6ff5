"""Rows of a partition that comes: the same features as a launch makes once it is over, and no invented row."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import polars as pl
import pytest
from dagster.components.testing import DefsFolderSandbox, create_defs_folder_sandbox
from polars.testing import assert_frame_equal

from ml_assets.components import Dataset, FeatureTable, TrainingPipeline
from ml_assets.components.base import SpecComponent
from ml_assets.context.errors import PredictionRefused
from ml_assets.context.prediction import ComingPartition, newest_whole
from ml_assets.data.tables.cadence import Cadence, PartitionsSection
from ml_assets.data.tables.coming_rows import ComingRowsUnknown, coming_rows
from ml_assets.data.tables.user_code import building, resolve_function
from ml_assets_tests.components.test_csv_scaffold import CASES, DAYS, Case

EVENTS = ("orders_with_ids", "days_of_uneven_sizes", "plans_known_in_advance")
"""Cases whose rows do not repeat."""


@dataclass(frozen=True)
class Scaffolded:
    """A pipeline that was made from a file, and the rows of its partitions."""

    coming: ComingPartition
    """The newest partition of the file, as it looked before it began."""
    rows: dict[str, pl.DataFrame]

    @property
    def past(self) -> list[tuple[str, pl.DataFrame]]:
        """Key and rows of the partitions before it."""
        return [*self.rows.items()][:-1]

    def built_later(self) -> pl.DataFrame:
        """Features of the partition, without labels, once it is over."""
        build = building(resolve_function(self.coming.features.function))
        first, last = self.coming.cadence.bounds(self.coming.key)
        built = build({self.coming.table: pl.concat(self.rows.values())}, first, last)
        return built.drop(self.coming.features.labels)


@pytest.fixture
def sandbox() -> Iterator[DefsFolderSandbox]:
    """A project with an empty defs folder."""
    with create_defs_folder_sandbox() as made:
        yield made


def _scaffolded(sandbox: DefsFolderSandbox, folder: Path, case: Case) -> Iterator[Scaffolded]:
    file = folder / "table.csv"
    file.write_text("\n".join([case.heading, *case.lines, ""]), encoding="utf-8")
    params = {"from": str(file), "time_zone": case.zone, "known": case.known, **case.options}
    sandbox.scaffold_component(TrainingPipeline, "shop", scaffold_params=params)
    with sandbox.build_component_tree() as tree:
        components = list(tree.get_all_components(SpecComponent))
        specs = {type(one): one.spec for one in components}
        dataset = specs[Dataset]
        read = resolve_function(dataset.source.function)
        keys = dataset.cadence.keys(date.min, date.max)
        yield Scaffolded(
            ComingPartition(
                features=specs[FeatureTable],
                dataset=dataset,
                entity=specs[TrainingPipeline].evaluation.baseline.entity or (),
                newest=keys[-2],
            ),
            {key: read(date.fromisoformat(key)) for key in keys},
        )


@pytest.mark.parametrize("name", [name for name in CASES if name not in EVENTS])
def test_a_coming_partition_has_the_features_of_its_later_build(
    sandbox: DefsFolderSandbox, tmp_path: Path, name: str
) -> None:
    for made in _scaffolded(sandbox, tmp_path, CASES[name]):
        found, later = made.coming.built(made.past, pl.DataFrame()), made.built_later()
        key = list(made.coming.features.contract.primary_key)
        # The last day of a file of hours lacks some.
        assert found.height == (24 if name.startswith("hours") else later.height)
        assert_frame_equal(found.join(later, on=key, how="semi").sort(key), later.sort(key))


@pytest.mark.parametrize("name", EVENTS)
def test_events_come_only_as_the_source_plans_them(
    sandbox: DefsFolderSandbox, tmp_path: Path, name: str
) -> None:
    """A plan may lack what is not known in advance, and a value that comes too early is not seen."""
    for made in _scaffolded(sandbox, tmp_path, CASES[name]):
        with pytest.raises(PredictionRefused, match="leave the rest empty"):
            made.coming.built(made.past, pl.DataFrame())
        plan = made.rows[made.coming.key]
        later = made.built_later()
        for sold in (pl.lit(None), pl.lit(10**6)):
            found = made.coming.built(
                made.past, plan.with_columns(sold.cast(plan.schema["sold"]).alias("sold"))
            )
            assert_frame_equal(found, later)


def test_a_plan_keeps_the_contract_of_what_is_known(sandbox: DefsFolderSandbox, tmp_path: Path) -> None:
    """A price of a hundred times the largest one was predicted with, and the dataset rejects such a day."""
    for made in _scaffolded(sandbox, tmp_path, CASES["plans_known_in_advance"]):
        plan = made.rows[made.coming.key]
        wrong = plan.with_columns(pl.lit(10**6).cast(plan.schema["price"]).alias("price"))
        with pytest.raises(PredictionRefused, match=r"in the source .* contract: .*price"):
            made.coming.built(made.past, wrong)
        with pytest.raises(PredictionRefused, match=r"in the source .* contract: .*price"):
            made.coming.built(made.past, plan.with_columns(pl.lit(None, plan.schema["price"]).alias("price")))


def test_some_planned_rows_do_not_hide_the_others(sandbox: DefsFolderSandbox, tmp_path: Path) -> None:
    """The source has the first figures of a day that runs: two stores of three."""
    for made in _scaffolded(sandbox, tmp_path, CASES["american_flags"]):
        begun = made.rows[made.coming.key].head(2)
        found = made.coming.built(made.past, begun)
        key = list(made.coming.features.contract.primary_key)
        assert_frame_equal(found.sort(key), made.built_later().sort(key))


def test_a_week_comes_until_its_last_day_is_there(sandbox: DefsFolderSandbox, tmp_path: Path) -> None:
    """A feature table of weeks that reads days. The days of the week that runs are not over."""
    for made in _scaffolded(sandbox, tmp_path, CASES["a_row_a_day"]):
        read = made.coming.features.inputs[0].model_copy(update={"cadence": "daily"})
        weeks = PartitionsSection(cadence="weekly", start=date(2024, 1, 8))
        features = made.coming.features.model_copy(update={"partitions": weeks, "inputs": (read,)})
        days = [day.isoformat() for day in DAYS]
        for present, newest, coming in (
            (28, "2024-01-22", 28),
            (31, "2024-01-22", 28),
            (35, "2024-01-29", 35),
        ):
            assert newest_whole(features, made.coming.dataset, days[:present]) == newest
            assert replace(made.coming, features=features, newest=newest).keys == days[coming : coming + 7]
        assert newest_whole(features, made.coming.dataset, days[:6]) is None


def test_a_day_without_rows_needs_no_columns(sandbox: DefsFolderSandbox, tmp_path: Path) -> None:
    """A source may return a frame without columns for a day without rows. Joined with other days it was a traceback."""
    for made in _scaffolded(sandbox, tmp_path, CASES["a_row_a_day"]):
        day = made.rows[made.coming.key]
        found = made.coming.planned_in([pl.DataFrame(), day.select(day.columns[::-1]), day.clear(), day])
        assert_frame_equal(found, pl.concat([day, day]))
        assert made.coming.planned_in([pl.DataFrame(), day.clear()]).is_empty()
        with pytest.raises(PredictionRefused, match="'sold' holds string where int64 is expected"):
            made.coming.planned_in([day, day.with_columns(pl.lit("many").alias("sold"))])


def _coming(
    past: list[tuple[str, pl.DataFrame]], key: str, cadence: str, *names: str, zone: str = "UTC"
) -> pl.DataFrame:
    made = Cadence(cadence, date(2000, 1, 1))  # pyright: ignore[reportArgumentType]
    return coming_rows(past, key, event_time="at", names=names, cadence=made, zone=zone)


def _hours(day: date, zone: str) -> tuple[str, pl.DataFrame]:
    begin, end = (
        datetime(d.year, d.month, d.day, tzinfo=ZoneInfo(zone)).astimezone(UTC)
        for d in (day, day + timedelta(1))
    )
    moments = [begin + timedelta(hours=n) for n in range((end - begin) // timedelta(hours=1))]
    return day.isoformat(), pl.DataFrame({"at": moments}, schema={"at": pl.Datetime("us", "UTC")})


@pytest.mark.parametrize(
    ("day", "hours"), [(date(2024, 3, 31), 23), (date(2024, 4, 1), 24), (date(2024, 10, 27), 24)]
)
def test_hours_move_by_the_clock(day: date, hours: int) -> None:
    """A clock in Berlin skips an hour in March. In October it shows one twice, and one row is not foreseen."""
    zone = "Europe/Berlin"
    past = [_hours(day - timedelta(n), zone) for n in (3, 2, 1)]
    found = _coming(past, day.isoformat(), "daily", zone=zone)
    expected = _hours(day, zone)[1]
    assert found.height == hours
    assert found.join(expected, on="at").height == hours


@pytest.mark.parametrize(
    ("cadence", "before", "key", "expected"),
    [
        ("monthly", ["2024-01-31"], "2024-02-01", ["2024-02-29"]),
        ("monthly", ["2024-02-01"], "2024-03-01", ["2024-03-01"]),
        ("monthly", ["2024-01-30"], "2024-02-01", ["2024-02-29"]),
        ("quarterly", ["2024-02-01"], "2024-04-01", ["2024-05-01"]),
        ("quarterly", ["2024-01-01", "2024-03-01"], "2024-04-01", ["2024-04-01", "2024-06-01"]),
        ("quarterly", ["2024-06-30"], "2024-07-01", ["2024-09-30"]),
        ("weekly", ["2024-02-26", "2024-02-29"], "2024-03-04", ["2024-03-04", "2024-03-07"]),
        ("monthly", [f"2024-04-{n:02}" for n in range(1, 31)], "2024-05-01", [f"2024-05-{n:02}" for n in range(1, 32)]),
    ],
)  # fmt: skip
def test_dates_move_to_their_place(cadence: str, before: list[str], key: str, expected: list[str]) -> None:
    frame = pl.DataFrame({"at": before, "shop": "a"}).with_columns(pl.col("at").str.to_date())
    newest = Cadence(cadence, date(2000, 1, 1)).key_of(date.fromisoformat(before[0]))  # pyright: ignore[reportArgumentType]
    found = _coming([(newest, frame)], key, cadence, "shop")
    assert found["at"].cast(pl.String).to_list() == expected
    assert set(found["shop"]) == {"a"}


@pytest.mark.parametrize("at", ["moments", "names", "places"])
def test_rows_without_a_rule_are_not_invented(at: str) -> None:
    """Purchases at any minute, an order number for each row, and three dates somewhere in a month."""
    if at == "moments":
        past = [
            (
                day.isoformat(),
                pl.DataFrame({"at": [datetime(day.year, day.month, day.day, n % 24, n % 57, tzinfo=UTC)]}),
            )
            for n, day in enumerate(DAYS[:7])
        ]
        with pytest.raises(ComingRowsUnknown, match="times of day"):
            _coming(past, DAYS[7].isoformat(), "daily")
    elif at == "names":
        past = [
            (day.isoformat(), pl.DataFrame({"at": [day], "order": [n]})) for n, day in enumerate(DAYS[:7])
        ]
        with pytest.raises(ComingRowsUnknown, match="order"):
            _coming(past, DAYS[7].isoformat(), "daily", "order")
    else:
        frame = pl.DataFrame({"at": [date(2024, 1, 3), date(2024, 1, 9), date(2024, 1, 20)]})
        with pytest.raises(ComingRowsUnknown, match="3 dates"):
            _coming([("2024-01-01", frame)], "2024-02-01", "monthly")
