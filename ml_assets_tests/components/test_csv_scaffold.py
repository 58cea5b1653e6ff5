"""`dg scaffold … --from FILE.csv`: tables of several shapes become pipelines that load and know no future.

`tour` trains one from a terminal.
"""

import gzip
import io
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from random import Random
from zoneinfo import ZoneInfo

import click
import polars as pl
import pytest
from dagster.components.testing import DefsFolderSandbox, create_defs_folder_sandbox
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_series_equal

from ml_assets.components import Dataset, FeatureTable, TrainingPipeline
from ml_assets.components.base import SpecComponent
from ml_assets.components.scaffold.column_values import plain_columns, typed_columns
from ml_assets.components.scaffold.csv_tables import LEAST_PARTITIONS, GivenOptions, infer, window_of
from ml_assets.components.scaffold.refusals import CsvRefused
from ml_assets.components.scaffold.rows_of_file import FileRows, read_rows
from ml_assets.components.specs import FeatureTableSpec
from ml_assets.data.features.cut_and_rebuild import Build, LeakReport, leak_test
from ml_assets.data.features.holiday_calendar import HOLIDAY_COLUMNS
from ml_assets.data.tables.cadence import Cadence, CadenceKind
from ml_assets.data.tables.user_code import building, resolve_function
from ml_assets.data.validation.check import check_partitions
from ml_assets.data.validation.volume import VolumePast, volume_findings

ROOT = Path(__file__).parents[2]
DAYS = [date(2024, 1, 1) + timedelta(days=n) for n in range(90)]
YEARS = range(1990, 2025)
WEEKS = [date(2023, 1, 4) + timedelta(weeks=n) for n in range(60)]


@dataclass(frozen=True)
class Case:
    """A file, and facts about it that a person would name."""

    heading: str
    lines: list[str]
    key: tuple[str, ...]
    series: tuple[str, ...] = ()
    label: str = "sold"
    known: str = ""
    """Option `--known`."""
    known_numbers: tuple[str, ...] = ()
    known_words: tuple[str, ...] = ()
    past_numbers: tuple[str, ...] = ()
    past_words: tuple[str, ...] = ()
    """Other columns whose earlier values are features."""
    cadence: str = "daily"
    zone: str = "UTC"
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    by_hour: bool = False
    """True if its rows are hours of a day."""
    objective: str = ""
    """Objective of the model, where it is not clear from the other cases."""


def _stations() -> list[str]:
    """Return rows in which `sold` follows the temperature and the sky of the day before, but no die."""
    draw, lines = Random(1), []
    for station in "AB":
        temp, sky = 10.0, "sun"
        for day in DAYS:
            sold = round(5 * temp + 20 * (sky == "rain") + draw.gauss(0, 2))
            temp, sky = draw.gauss(10, 3), draw.choice(["sun", "rain", "fog"])
            lines.append(f"{day},{station},{temp:.1f},{temp:.1f},{sky},{draw.randint(1, 6)},{sold}")
    return lines


CASES = {
    "stations_with_other_columns": Case(
        "date,station,temp,temp_last,sky,die,sold",
        _stations(),
        ("date", "station"),
        ("station",),
        past_numbers=("temp", "temp_last_in_file"),
        past_words=("sky",),
    ),
    "a_row_a_day": Case("Day,Sold", [f"{d},{100 + d.day}" for d in DAYS], ("day",), zone="Europe/Berlin"),
    "german_with_stores": Case(
        "Datum;Filiale;Umsatz €",
        [f"{d:%d.%m.%Y};{store};{d.day},5" for d in DAYS for store in ("Nord", "Süd")],
        ("datum", "filiale"),
        ("filiale",),
        label="umsatz",
    ),
    "american_flags": Case(
        "date,store,no,sold",
        [f"{d:%m/%d/%Y},{store},{d.day / 3},{(d.day + store) % 2}" for d in DAYS for store in range(3)],
        ("date", "store"),
        ("store",),
    ),
    "hours_across_clock_changes": Case(
        "at\tsold",
        [
            f"{datetime(2024, 2, 20, 5, tzinfo=ZoneInfo('UTC')) + timedelta(hours=n):%Y-%m-%dT%H:%M:%SZ}\t{n % 24}"
            for n in range(24 * 50 - 1)
        ],
        ("at",),
        zone="America/New_York",
        by_hour=True,
    ),
    "half_hours_of_two_sites": Case(
        "at,site,sold",
        [
            f"{day}T{n // 2:02}:{n % 2 * 30:02}Z,{site},{n + 30 * (n % 2)}"
            for day in DAYS[:40]
            for n in range(48)
            for site in ("north", "south")
        ],
        ("at", "site"),
        ("site",),
        by_hour=True,
    ),
    "orders_with_ids": Case(
        "order_id,on,sold",
        [f"{n},{DAYS[n // 5]:%Y%m%d},{n % 7 or 'NA'}" for n in range(400)],
        ("order_id",),
    ),
    "days_of_uneven_sizes": Case(
        "order_id,on,sold",
        [
            f"{n:02}-{i:02},{day},{i % 3}"
            for n, day in enumerate(DAYS[:60])
            for i in range(3 if n % 9 else 11)
        ],
        ("order_id",),
    ),
    "plans_known_in_advance": Case(
        "order_id,on,Price €,plan,ad,rain,sold",
        [
            f"{n},{DAYS[n // 5]},{n % 9 / 2},{('', 'flat', 'free')[n % 3]},{str(n % 2 == 0).lower()},{n % 4},{n % 2}"
            for n in range(400)
        ],
        ("order_id",),
        known="Price €, plan,ad",
        known_numbers=("price", "ad"),
        known_words=("plan",),
    ),
    "as_people_write": Case(
        "Datum;Geburtstag;Filiale;Umsatz;Anteil;Bezahlt",
        [
            f"{d.day}-{d:%b-%Y};{d.day:02}.01.1980;{store};1.{d.day + 100},50 €;{d.day} %;{('ja', 'nein')[d.day % 2]}"
            for d in DAYS
            for store in ("Nord", "Süd")
        ],
        ("datum", "filiale"),
        ("filiale",),
        label="umsatz",
        options={"label": "Umsatz", "date": "Datum"},
        objective="regression",
    ),
    "classes": Case(
        "on,shop,amount,weather,sold",
        [
            f'{d:%b} {d.day} {d.year},{shop},"$1,{d.day:03}",{["sun", "rain", "fog"][(d.day + shop) % 3]},{d.day}'
            for d in DAYS
            for shop in range(2)
        ],
        ("on", "shop"),
        ("shop",),
        label="weather",
        options={"label": "weather", "decimal": "point", "entity": "shop"},
        objective="multiclass",
    ),
    "months": Case(
        "month,fare,sold",
        [f"{2015 + n // 12}-{n % 12 + 1:02},£{n % 5},{n % 12}" for n in range(80)],
        ("month",),
        cadence="monthly",
        objective="regression",
    ),
    "quarters": Case(
        "at,sold",
        [f"01/{3 * (n % 4) + 1:02}/{2000 + n // 4},{n % 4}" for n in range(60)],
        ("at",),
        cadence="quarterly",
        options={"date_format": "%d/%m/%Y"},
    ),
    "quarters_by_name": Case(
        "quarter,sold",
        [f"{2000 + n // 4}Q{n % 4 + 1},{n % 4}" for n in range(60)],
        ("quarter",),
        cadence="quarterly",
    ),
    "days_in_a_form_of_their_own": Case(
        "day,sold",
        [f"{d:%Y %m %d},{d.day}" for d in DAYS],
        ("day",),
        options={"date_format": "%Y %m %d"},
    ),
    "years": Case(
        "Year,births,sold",
        [f"{1940 + n},{2000 + n % 9},{n % 7}" for n in range(70)],
        ("year",),
        cadence="yearly",
    ),
    "years_of_people_with_dates_of_birth": Case(
        "year,person,birth_date,income",
        [f"{n},{who},19{61 + who * 7 % 30}-03-0{who},{n % 7 + who}" for n in YEARS for who in range(1, 6)],
        ("year", "person"),
        ("person",),
        label="income",
        cadence="yearly",
        objective="regression",
    ),
    "parts_of_the_date_in_other_columns": Case(
        "date,sold,fiscal_year,quarter,Month,dow",
        [
            f"{d},{d.day % 9},{d.year + (d.month > 2)},Q{(d.month + 2) // 3},{d.month},{d.weekday()}"
            for d in DAYS
        ],
        ("date",),
    ),
    "quarters_of_a_town_and_a_text_for_each_row": Case(
        "day,quarter,ticket,month,sold",
        [f"{d},{quarter},{quarter} {d},,{d.day}" for d in DAYS for quarter in ("north", "south")],
        ("day", "quarter"),
        ("quarter",),
    ),
    "quarters_as_series_of_years": Case(
        "year,quarter,sold",
        [f"{n},{q},{n % 7 + q}" for n in YEARS for q in range(1, 5)],
        ("year", "quarter"),
        ("quarter",),
        cadence="yearly",
        options={"entity": "quarter"},
        objective="regression",
    ),
    "year_and_month_apart": Case(
        "Year,Month,store,sold",
        [f"{2015 + n // 12},{n % 12 + 1},{store},{n % 12}" for n in range(60) for store in "AB"],
        ("year_month", "store"),
        ("store",),
        cadence="monthly",
    ),
    "year_and_name_of_the_month_apart": Case(
        "mon,yr,sold",
        [f"{date(2015 + n // 12, n % 12 + 1, 1):%b},{2015 + n // 12},{n % 12}" for n in range(60)],
        ("yr_mon",),
        cadence="monthly",
    ),
    "year_and_quarter_apart": Case(
        "year,quarter,month,sold",
        [f"{n},Q{q},{3 * q},{n % 7 + q}" for n in YEARS for q in range(1, 5)],
        ("year_month",),
        cadence="quarterly",
        objective="regression",
    ),
    "year_month_and_day_apart": Case(
        "yyyy;mm;dd;dow;sold",
        [f"{d.year};{d.month:02};{d.day:02};{d.weekday()};{d.day % 9}" for d in DAYS],
        ("yyyy_mm_dd",),
    ),
    "parts_that_a_person_named": Case(
        "a,b,sold",
        [f"{2015 + n // 12},{n % 12 + 1},{n % 12}" for n in range(60)],
        ("a_b",),
        cadence="monthly",
        options={"date": "a,b"},
    ),
    "days_with_holidays": Case(
        "day,sold",
        [f"{d},{d.day % 9}" for d in DAYS],
        ("day",),
        options={"holidays": "US-CA"},
    ),
    "weeks_with_gaps": Case(
        "week,returned",
        [f"{d},{str(n % 2 == 0).lower()}" for n, d in enumerate(WEEKS) if n % 9],
        ("week",),
        label="returned",
        cadence="weekly",
    ),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture
def file(case: Case, tmp_path: Path) -> Path:
    path = tmp_path / "table.csv"
    path.write_text("\n".join([case.heading, *case.lines, ""]), encoding="utf-8")
    return path


@pytest.fixture
def sandbox() -> Iterator[DefsFolderSandbox]:
    """A project with an empty defs folder."""
    with create_defs_folder_sandbox() as made:
        yield made


def _spec(components: list[SpecComponent], of_type: type[SpecComponent]):
    (found,) = [component for component in components if isinstance(component, of_type)]
    return found.spec


def test_a_file_becomes_a_pipeline_that_knows_no_future(
    sandbox: DefsFolderSandbox, case: Case, file: Path
) -> None:
    folder = sandbox.scaffold_component(
        TrainingPipeline,
        "shop",
        scaffold_params={"from": str(file), "time_zone": case.zone, "known": case.known, **case.options},
    )
    # Long names of a file make lines that the formatter would break.
    _is_in_house_style(folder, "check", *(["format"] if case.label == "sold" else []))
    with sandbox.build_component_tree() as tree:
        components = list(tree.get_all_components(SpecComponent))
        dataset, features = _spec(components, Dataset), _spec(components, FeatureTable)
        model = _spec(components, TrainingPipeline)
        read = resolve_function(dataset.source.function)
        build = building(resolve_function(features.function))
        latest = resolve_function(dataset.source.latest)()
        cadence: Cadence = dataset.cadence
        keys = cadence.keys(date.min, date.max)
        frames = {key: read(date.fromisoformat(key)) for key in keys}
        bounds = {key: cadence.bounds(key) for key in keys}
        findings = check_partitions(frames, dataset.contract, bounds=bounds)
        sizes = {key: len(frame) for key, frame in frames.items()}
        uneven = [volume_findings(sizes, VolumePast(), table.volume) for table in (dataset, features)]
        rows = pl.concat(frames.values())
        (section,) = features.inputs
        days = [date.fromisoformat(key) for key in (keys[len(keys) // 2], keys[-1])]
        report = _leak_tested(features, build, rows, days)
        built = build({section.table: rows}, bounds[keys[0]][0], bounds[keys[-1]][1])
        findings |= check_partitions({"features": built}, features.contract)
    assert len(rows) == len(built) == len(case.lines)
    assert report.ok, report.explain()
    assert {key: found for key, found in findings.items() if found} == {}
    assert not [key for found in uneven for key, finding in found.items() if finding.blocks]
    assert dataset.contract.primary_key == case.key
    calendar = ("weekday",) if case.cadence == "daily" else ()
    last_words = tuple(f"{name}_last" for name in case.past_words)
    assert model.features.categorical == (*calendar, *case.series, *case.known_words, *last_words)
    assert model.evaluation.baseline.entity == (*case.series, *(("hour",) if case.by_hour else ()))
    assert case.objective in ("", model.evaluation.objective)
    learns_a_difference = model.evaluation.objective == "regression"
    earlier = model.model.hyperparameters.get("past", [])
    assert bool(earlier) == learns_a_difference
    assert set(earlier) <= set(model.features.numeric)
    assert earlier[:2] == ([f"{case.label}_last", f"{case.label}_mean"] if learns_a_difference else [])
    of_label = [f"{case.label}_{n}" for n in (1, 2, 3)] if case.objective == "multiclass" else [case.label]
    others = [
        f"{name}_{what}" for name in (*of_label, *case.past_numbers) for what in ("last", "change", "mean")
    ]
    of_past = [name for name in model.features.numeric if name.endswith(("_last", "_change", "_mean"))]
    assert of_past == others
    assert (
        model.features.numeric[len(model.features.numeric) - len(case.known_numbers) :] == case.known_numbers
    )
    holidays = HOLIDAY_COLUMNS if "holidays" in case.options else ()
    assert tuple(name for name in model.features.numeric if name in HOLIDAY_COLUMNS) == holidays
    assert {*case.known_numbers, *case.known_words}.isdisjoint(*(one.columns for one in section.known_at))
    assert model.features.label == case.label
    assert cadence.kind == case.cadence
    assert cadence.complete(latest) == keys


def _leak_tested(
    features: FeatureTableSpec, build: Build, rows: pl.DataFrame, days: list[date]
) -> LeakReport:
    (section,) = features.inputs
    return leak_test(
        build,
        {section.table: rows},
        {section.table: section.known_at or ()},
        *days,
        primary_key=features.contract.primary_key,
        labels=features.labels,
        partition_date=features.partition_date,
    )


@pytest.mark.parametrize("case", ["half_hours_of_two_sites"], indirect=True)
def test_half_hours_look_back_at_their_time_of_day(sandbox: DefsFolderSandbox, file: Path) -> None:
    """Both halves of an hour had the same features, so a model gave them the same prediction."""
    sandbox.scaffold_component(TrainingPipeline, "shop", scaffold_params={"from": str(file)})
    with sandbox.build_component_tree() as tree:
        components = list(tree.get_all_components(SpecComponent))
        dataset, features = _spec(components, Dataset), _spec(components, FeatureTable)
        day = DAYS[30]
        rows = pl.concat(map(resolve_function(dataset.source.function), DAYS[:31]))
        built = building(resolve_function(features.function))({features.inputs[0].table: rows}, day, day)
    half_past = built.filter(pl.col("hour") == 8.5)
    assert half_past.select("site", "sold_last", "sold_mean").rows() == [("north", 47, 47), ("south", 47, 47)]
    assert set(built.filter(pl.col("hour") == 8)["sold_last"]) == {16}


def test_each_column_of_the_day_itself_is_a_leak(sandbox: DefsFolderSandbox, tmp_path: Path) -> None:
    """`known_at` of the written table hides numbers and texts of the predicted day from each feature."""
    case = CASES["stations_with_other_columns"]
    file = tmp_path / "table.csv"
    file.write_text("\n".join([case.heading, *case.lines, ""]))
    folder = sandbox.scaffold_component(TrainingPipeline, "shop", scaffold_params={"from": str(file)})
    written = (folder / "features.py").read_text()
    changed = written.replace('offset_by(f"{lag}d")', 'offset_by(f"{lag - 1}d")')
    assert changed != written
    (folder / "features.py").write_text(changed)
    with sandbox.build_component_tree() as tree:
        components = list(tree.get_all_components(SpecComponent))
        dataset, features = _spec(components, Dataset), _spec(components, FeatureTable)
        rows = pl.concat(map(resolve_function(dataset.source.function), DAYS))
        report = _leak_tested(
            features, building(resolve_function(features.function)), rows, [DAYS[45], DAYS[-1]]
        )
    found = {leak.column for leak in report.leaks}
    assert {"sold_last", "temp_last", "temp_change", "temp_mean", "sky_last"} <= found


def test_a_label_that_few_days_have_looks_back_at_those_days(tmp_path: Path) -> None:
    """Each day has a row, and each eighth a label. The last seven days had none, so the snapshot refused the column."""
    file = tmp_path / "table.csv"
    lines = [f"{day},{n % 8},{n if n % 8 == 0 else ''}" for n, day in enumerate(DAYS)]
    file.write_text("\n".join(["day,phase,sold", *lines, ""]))
    table = infer(read_rows(file), GivenOptions(label="sold"))
    assert table.recent == (8, 16, 24)


def test_shops_look_back_at_days_on_which_they_have_labels(tmp_path: Path) -> None:
    """Each day has a label of some shop, and each shop one in ten days."""
    file = tmp_path / "table.csv"
    lines = [f"{d},{shop},{n if n % 10 == shop else ''}" for n, d in enumerate(DAYS) for shop in range(10)]
    file.write_text("\n".join(["day,shop,sold", *lines, ""]))
    table = infer(read_rows(file), GivenOptions(entity=("shop",)))
    assert (table.recent, table.season) == ((10, 20), ())


def test_two_days_of_a_customer_make_no_change_of_the_past(
    sandbox: DefsFolderSandbox, tmp_path: Path
) -> None:
    """The column `paid_change` had no value, so the snapshot refused it."""
    file = tmp_path / "table.csv"
    file.write_text("\n".join(["day,who,paid", *(f"{d},{n // 2},{n % 7}" for n, d in enumerate(DAYS)), ""]))
    folder = sandbox.scaffold_component(
        TrainingPipeline, "shop", scaffold_params={"from": str(file), "entity": "who"}
    )
    _is_in_house_style(folder, "check", "format")
    assert "paid_last" in (folder / "defs.yaml").read_text()
    assert "paid_change" not in (folder / "defs.yaml").read_text()
    assert "_change(" not in (folder / "features.py").read_text()


def test_a_wide_table_gives_features_of_a_few_columns(tmp_path: Path) -> None:
    draw, names = Random(1), [f"sensor_{n}" for n in range(40)]
    lines, strength = [], [0.0] * 40
    for day in DAYS:
        sold = sum(strength[:30]) + draw.gauss(0, 1)
        strength = [draw.gauss(0, 1) for _ in names]
        lines.append(",".join([str(day), *(f"{value:.3f}" for value in strength), f"{sold:.3f}"]))
    file = tmp_path / "table.csv"
    file.write_text("\n".join([",".join(["day", *names, "sold"]), *lines]))
    table = infer(read_rows(file))
    taken = table.past.numbers
    assert 1 <= len(taken) <= 3
    assert "too few rows can tell more apart" in table.past.note
    # Rows of the splits that measure a model must not choose its features.
    kept = lines[: table.window["train"]]
    file.write_text(
        "\n".join(
            [",".join(["day", *names, "sold"]), *kept, *(f"{day},{'7,' * 40}1" for day in DAYS[len(kept) :])]
        )
    )
    assert infer(read_rows(file)).past.numbers == taken


@given(
    st.lists(st.integers(0, 5_000), max_size=9),
    st.integers(0, 1_500),
    st.lists(st.integers(0, 50) | st.just(0), min_size=20, max_size=400),
)
def test_splits_share_rows_and_have_enough_partitions(early: list[int], gap: int, late: list[int]) -> None:
    rows = [*early, *[0] * gap, *late]
    present = sum(map(bool, rows))
    if present < LEAST_PARTITIONS or not (rows[0] and rows[-1]):
        return
    window = window_of(rows)
    ends = len(rows) - window["holdout"]
    holdout, rest = rows[ends:], rows[:ends]
    validation = rest[-window["validation"] :]
    assert sum(map(bool, holdout)) >= 5
    assert sum(map(bool, validation)) >= 3
    assert len(rest) - len(validation) >= window["train"] >= min(730, len(rest) - len(validation))
    assert sum(map(bool, rest[: -len(validation)][-window["train"] :])) >= 12
    assert sum(holdout) <= sum(rows) / 4 or sum(map(bool, holdout)) == 5
    assert sum(validation) <= sum(rest) / 6 or sum(map(bool, validation)) == 3


def test_rows_of_1900_hold_up_no_scaffold(tmp_path: Path) -> None:
    """Unknown dates are often written as 1900-01-01. The search for splits before the long gap had no end."""
    file = tmp_path / "sales.csv"
    lines = [f"1900-01-01,old{n},{n % 7}" for n in range(400)]
    lines += [f"{d},{d.day}_{n},{(n + d.day) % 7}" for d in DAYS[:22] for n in range(3)]
    file.write_text("\n".join(["day,sale,sold", *lines, ""]))
    table = infer(read_rows(file), GivenOptions(cadence="daily"))
    assert table.window["validation"] + table.window["holdout"] < 22


def test_a_table_whose_rows_become_more_keeps_most_of_them_to_train(tmp_path: Path) -> None:
    """A sixth of the days of polls before an election had three fifths of the rows, and the training a quarter."""
    file = tmp_path / "polls.csv"
    lines = [f"{d},{n}_{k},{(n + k) % 7}" for n, d in enumerate(DAYS) for k in range(1 + n**3 // 9000)]
    file.write_text("\n".join(["day,poll,share", *lines, ""]))
    table = infer(read_rows(file))
    assert table.window["holdout"] < len(DAYS) // 6
    assert table.training_rows > 0.55 * len(lines)
    steady = [f"{d},{k},{(n + k) % 7}" for n, d in enumerate(DAYS) for k in range(9)]
    file.write_text("\n".join(["day,poll,share", *steady, ""]))
    assert infer(read_rows(file)).window == {"train": 66, "validation": 9, "holdout": 15}


def _is_in_house_style(folder: Path, *steps: str) -> None:
    config = ["--no-cache", "--config", ROOT / "pyproject.toml"]
    for step in steps:
        options = ["--check"] if step == "format" else []
        done = subprocess.run(
            [Path(sys.executable).parent / "ruff", step, *options, *config, folder],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout


DATED = "\n".join(f"{day},1" for day in DAYS[:30])
HALVES = "\n".join(f"{day},{day.day}.5" for day in DAYS[:30])
SOLD = "\n".join(f"{day},{day.day},{day.day % 9}" for day in DAYS[:30])
RARE = "\n".join(f"{day},{int(n == 3)}" for n, day in enumerate(DAYS))
LATE = "\n".join(f"{day},{max(n, 75)}" for n, day in enumerate(DAYS))
HUGE = "\n".join(f"{day},{n + 1}e26" for n, day in enumerate(DAYS))
DIGITS = "\n".join(f"{day},{10**12 + n}" for n, day in enumerate(DAYS))
APART = "\n".join(f"{day},{n % 30},{n}.5" for n, day in enumerate(DAYS))
NAMES = "\n".join(f"{day},name {n},{day.day}" for n, day in enumerate(DAYS))
MONTHS_AS_DAYS = "\n".join(f"0{n % 9 + 1}/01/{2000 + n // 9},{n}" for n in range(60))
TWICE = "\n".join(f"{day},{shop},{n}.5" for day in DAYS for n, shop in enumerate((1, 2, 2)))
NUMBERS = "\n".join(f'{day},"{n},5 €"' for n, day in enumerate(DAYS))
SHOPS = "\n".join(
    f"{day},{shop},{2 * n + place}"
    for n, day in enumerate(DAYS[:30])
    for place, shop in enumerate(("north", "south"))
)
GERMAN_WEEKDAYS = "\n".join(
    f"{('Mo', 'Di', 'Mi', 'Do', 'Fr', 'Sa', 'So')[day.weekday()]} {day},{day.day}" for day in DAYS
)
ONE_A_YEAR = "\n".join(f"{year},{year % 7}" for year in YEARS)
QUARTERS = "\n".join(f"{year},{n},{year % 7 + n}" for year in YEARS for n in (1, 2, 3, 4))
DAYS_OF_YEARS = "\n".join(f"{year},{n},{n}" for year in YEARS for n in range(1, 32))
HOURS = "\n".join(f"{day}T{hour:02}:00Z,{hour // 2},{hour}.5" for day in DAYS[:20] for hour in range(24))
MISTAKES = [
    # the file as a whole
    ("empty", "", {}, "table.csv is empty"),
    ("blank", "\n\n", {}, "table.csv is empty"),
    ("heading_only", "day,sold\n", {}, "no rows below its first line"),
    ("text", "some words\nand more", {}, "line 1, 'some words', has no comma, semicolon, tab or |"),
    ("one_column", f"day\n{DAYS[0]}\n", {}, "line 1 names only 'day'"),
    ("other_separator", f"day:sold\n{DATED.replace(',', ':')}", {}, "separated by commas"),
    ("separator_of_excel", f"sep=;\nday;sold\n{DATED}", {}, "line 1: delete 'sep=;'"),
    ("picture", b"\x89PNG\r\n\x1a\n\xff\xd8", {}, "is a picture, not CSV"),
    ("workbook", b"PK\x03\x04 xl/workbook", {}, "is an archive, not CSV: unpack it"),
    ("web_page", "<!DOCTYPE html><html>", {}, "is a web page"),
    ("json", '[{"day": "2024-01-01"}]', {}, "is a JSON array"),
    ("latin_1", f"day,sold\n{DATED}\n2024-02-02,Süd".encode("latin-1"), {}, "line 32: not UTF-8, as Latin-1"),
    ("utf_16", f"day,sold\n{DATED}".encode("utf-16"), {}, "iconv -f UTF-16 -t UTF-8 table.csv"),
    ("cut_off_gzip", gzip.compress(f"day,sold\n{DATED}".encode())[:50], {}, "cannot be read"),
    (
        "named_twice",
        "day,sold,sold\n2024-01-01,1,2\n",
        {},
        "line 1: two columns are named 'sold': rename one",
    ),
    ("short_line", "day,sold,a\n2024-01-01,1\n", {}, "line 2: it has 2 fields, and line 1 has 3"),
    ("long_line", f"day,sold\n{DATED}\n2024-02-01,1,5", {}, "line 32: it has 3 fields, and line 1 has 2"),
    # dates
    ("no_date", "a,b\n1,2\n", {}, "no column holds dates: there are a, b"),
    (
        "one_bad_date",
        f"day,sold\n{DATED}\n2024-02-31,7",
        {},
        "line 32: 'day' holds '2024-02-31', which is not a date",
    ),
    ("word_for_a_date", f"day,sold\n{DATED}\nSumme,7", {}, "line 32: 'day' holds 'Summe'"),
    (
        "day_or_month_first",
        f"day,sold\n{MONTHS_AS_DAYS}",
        {},
        "--date-format '%d/%m/%Y' or --date-format '%m/%d/%Y'",
    ),
    ("row_without_date", f"day,sold\n{DATED}\n,3", {}, "line 32: 'day' is empty"),
    ("no_zone", "at,sold\n2024-01-01 08:00,1\n", {}, "without an offset from UTC: give their time zone"),
    ("date_typo", f"day,sold\n{DATED}", {"date": "dya"}, "--date dya is not a column: did you mean 'day'?"),
    (
        "date_of_words",
        f"day,x,sold\n{NAMES}",
        {"date": "x"},
        "line 2: 'x' holds 'name 0', which is not a date",
    ),
    ("wrong_format", f"day,sold\n{DATED}", {"date": "day", "date_format": "%d.%m.%Y"}, "holds '2024-01-01'"),
    (
        "weekday_in_german",
        f"Datum,sold\n{GERMAN_WEEKDAYS}",
        {},
        "line 2: 'Datum' holds 'Mo 2024-01-01', which is not a date that is understood: delete the word 'Mo'",
    ),
    (
        "format_without_the_weekday",
        f"Datum,sold\n{GERMAN_WEEKDAYS}",
        {"date_format": "%Y-%m-%d"},
        "which is not a date that --date-format '%Y-%m-%d' reads: delete the word 'Mo'",
    ),
    (
        "month_in_german",
        "\n".join(["day,sold", *(f"{n}. Januar 2024,{n}" for n in range(1, 30))]),
        {},
        "with English names of months",
    ),
    ("year_0", f"day,sold\n0000-01-01,1\n{DATED}", {}, "line 2: 'day' is not in the years 1 to 9999"),
    (
        "year_975",
        "Year,sold\n" + "\n".join(f"{year - 1015:04},{year}" for year in YEARS),
        {},
        "line 2: 'Year' holds 0975, and partitions are of the years 1001 to 9998",
    ),
    ("day_9999", f"day,sold\n{DATED}\n9999-12-31,1", {}, "line 32: 'day' holds 9999-12-31, and partitions"),
    (
        "month_or_quarter",
        "at,sold\n" + "\n".join(f"{2000 + n // 4}-{n % 4 + 1},{n}" for n in range(60)),
        {},
        "'at' reads as months and as quarters, such as '2000-1': add --date-format '%Y-%m' or --date-format '%Y-%q'",
    ),
    (
        "year_and_quarter_of_dates",
        "year,quarter,sold\n" + QUARTERS,
        {"date": "year"},
        "such as 2024Q1; or add --date year,quarter; or add --entity quarter, if each quarter is a series",
    ),
    (
        "year_and_month_of_dates",
        "Month,FY,sold\n" + "\n".join(f"{DAYS[31 * n]:%b},{year},{n}" for year in YEARS for n in range(3)),
        {},
        "'FY' may begin with another month than January: write one column with dates such as 2024-01; or add --date "
        "FY,Month",
    ),
    (
        "year_and_week",
        "year,week,sold\n" + "\n".join(f"{year},{n},{n}" for year in YEARS for n in range(1, 53)),
        {},
        "'year' and 'week' are a date in two columns: write one column with dates such as 2024-01-31; or add --entity",
    ),
    (
        "year_month_and_weekday",
        "year,month,day,sold\n"
        + "\n".join(f"{year},{n},{day},{n}" for year in YEARS for n in range(1, 13) for day in (1, 2, 3)),
        {},
        "'day' holds numbers up to 3, which may be days of the week: add --date year,month,day for days of the month",
    ),
    (
        "no_such_month",
        "year,month,sold\n" + "\n".join(f"{year},{n % 13 or 13},{n}" for year in YEARS for n in range(1, 14)),
        {},
        "line 14: 'year-month' holds '1990-13', which is not a date",
    ),
    (
        "empty_month",
        "year,month,sold\n" + "\n".join(f"{year},{n or ''},{n}" for year in YEARS for n in range(13)),
        {},
        "line 2, and 34 more rows: 'year-month' is empty: give each row a date",
    ),
    (
        "unclear_part",
        "year,x,sold\n" + QUARTERS,
        {"date": "year,x"},
        "'x' may be quarter or month: add --date-format for the texts joined by -, such as --date-format '%Y-%m'",
    ),
    (
        "part_twice",
        "year,x,sold\n" + QUARTERS,
        {"date": "year,year"},
        "name the columns of year, month and day once",
    ),
    ("no_such_part", "year,x,sold\n" + QUARTERS, {"date": "year,y"}, "--date y is not a column"),
    ("year_is_not_first", "year,x,sold\n" + QUARTERS, {"date": "x,year"}, "name the year first"),
    (
        "day_without_month",
        "year,x,sold\n" + DAYS_OF_YEARS,
        {"date": "year,x"},
        "'x' is neither quarter, month nor day",
    ),
    (
        "one_bad_year",
        "Year,sold\n" + ONE_A_YEAR.replace("1993", "93"),
        {},
        "line 5: 'Year' holds '93', which is not",
    ),
    (
        "one_bad_date_beside_others",
        "born,day,sold\n"
        + "\n".join(f"{d - timedelta(d.day * 3000)},{d},{d.day}" for d in DAYS)
        + "\n1990-01-01,x,1",
        {},
        "line 92: 'day' holds 'x', which is not a date written as 2024-01-31 like the others",
    ),
    (
        "two_forms",
        "quarter,sold\n" + "\n".join(f"{year}{'-' * (year % 2)}Q1,{year}" for year in YEARS),
        {},
        "line 3: 'quarter' holds '1991-Q1', which is not a date written as 2024Q1 like the others",
    ),
    (
        "fiscal_quarter",
        "quarter,sold\n" + "\n".join(f"FY{year} Q1,{year}" for year in YEARS),
        {},
        "line 2: 'quarter' holds 'FY1990 Q1', which is not a date that is understood: write dates as 2024-01-31, "
        "2024-01, 2024Q1 or 2024, or give --date-format 'FY%Y Q%q'",
    ),
    (
        "years_of_two_digits",
        "id,Year,sold\n" + "\n".join(f"a,{year % 100:02},{year}" for year in YEARS),
        {},
        "line 2: 'Year' holds '90', which is not a date that is understood",
    ),
    (
        "days_of_quarters",
        "at,sold\n" + "\n".join(f"{year}Q{n},{n}" for year in YEARS for n in (1, 2, 3, 4)),
        {"cadence": "daily"},
        "--cadence daily: the rows are a quarter apart or more, so most days would be empty: leave it out, or choose "
        "quarterly or yearly",
    ),
    (
        "quarters_of_years",
        f"year,sold\n{ONE_A_YEAR}",
        {"cadence": "quarterly"},
        "the rows are a year apart or more",
    ),
    ("no_format", f"day,sold\n{DATED}", {"date_format": "%Q"}, "--date-format '%Q' has %Q: use %Y"),
    ("zone", f"day,a,sold\n{SOLD}", {"time_zone": "Europe/Berlim"}, "did you mean 'Europe/Berlin'?"),
    ("cadence", f"day,a,sold\n{SOLD}", {"cadence": "dayly"}, "--cadence dayly: did you mean 'daily'?"),
    ("hours", f"day,a,sold\n{SOLD}", {"cadence": "hourly"}, "a model is trained by days or longer"),
    (
        "twelve_rows",
        "day,sold\n" + "\n".join(DATED.split()[:12]),
        {},
        "has rows of 12 days that are over: a first model needs",
    ),
    ("few_months", f"day,a,sold\n{SOLD}", {"cadence": "monthly"}, "or try --cadence daily"),
    (
        "few_years",
        "\n".join(["year,sold", *ONE_A_YEAR.split()[:12]]),
        {},
        "has rows of 12 years that are over: a first model needs at least 20 for training, validation and holdout: "
        "give a file with more",
    ),
    # numbers
    (
        "thousands",
        'day,sold\n2024-01-01,"1,234"\n',
        {},
        "line 2: 'sold' holds '1,234', which reads with",
    ),
    ("decimal", f"day,a,sold\n{SOLD}", {"decimal": "dot"}, "--decimal dot: write comma or point"),
    (
        "a_word_among_numbers",
        "day,sold\n" + NUMBERS.replace('"61,5 €"', "closed"),
        {"label": "sold"},
        "line 63: 'sold' holds 'closed', which is not a number like the others",
    ),
    # holidays
    ("no_country", f"day,a,sold\n{SOLD}", {"holidays": "us"}, "write it as in US"),
    ("no_part", f"day,a,sold\n{SOLD}", {"holidays": "FR-XX"}, "FR has no part 'XX'"),
    (
        "holidays_of_weeks",
        "day,sold\n" + "\n".join(f"{day},{day.day}" for day in WEEKS),
        {"holidays": "US"},
        "--holidays US: a week has many days",
    ),
    # keys, entities and labels
    (
        "rows_twice",
        f"day,sold\n{DATED}\n{DATED}",
        {},
        "lines 2 and 32 are equal, and so are 29 more rows: delete all but one of them",
    ),
    (
        "a_row_twice_among_shops",
        f"day,shop,sold\n{SHOPS}\n{DAYS[8]},south,17",
        {},
        "lines 19 and 62 are equal: delete all but one of them",
    ),
    (
        "a_shop_twice_on_a_day",
        f"day,shop,sold\n{SHOPS}\n{DAYS[8]},south,4",
        {},
        "lines 19 and 62: both have the same day and shop, and no columns identify a row",
    ),
    (
        "an_hour_twice",
        f"at,temp,sold\n{HOURS}\n2024-01-02T07:00Z,9,3.5",
        {},
        "lines 33 and 482: both have the same at, and no columns identify a row",
    ),
    (
        "twenty_days_with_a_part_of_one",
        f"at,temp,sold\n{HOURS}".rpartition("\n")[0],
        {},
        "has rows of 19 days that are over: a first model needs",
    ),
    (
        "no_key",
        f"day,sold\n{HALVES}\n{HALVES.replace('.5', '.25')}",
        {},
        "lines 2 and 32: both have the same day, and so have 29 more rows, and no columns identify a row",
    ),
    (
        "no_key_of_shops",
        f"day,shop,sold\n{TWICE}",
        {"entity": "shop"},
        "lines 3 and 4: both have the same day and shop",
    ),
    ("entity_typo", f"day,shop,sold\n{TWICE}", {"entity": "shoop"}, "did you mean 'shop'?"),
    ("entity_of_rows", f"day,x,sold\n{NAMES}", {"entity": "x"}, "--entity x names 90 things in 90 rows"),
    (
        "entity_is_label",
        f"day,a,sold\n{SOLD}",
        {"entity": "sold", "label": "sold"},
        "--entity sold is the label",
    ),
    ("constant", f"day,sold\n{DATED}", {}, "no column can be predicted"),
    ("constant_label", f"day,sold\n{DATED}", {"label": "sold"}, "'sold' is 1 in all rows"),
    (
        "rare_label",
        f"day,sold\n{RARE}",
        {},
        "'sold' is always 0 from 2024-03-16 to 2024-03-30, the rows",
    ),
    (
        "label_of_one_number_in_training",
        f"day,sold\n{LATE}",
        {},
        "the rows of the training, so no model can be trained",
    ),
    ("infinite", f"day,a,sold\n{SOLD}\n2024-04-09,inf,3", {}, "'a' is infinite"),
    ("infinite_label", f"day,sold\n{LATE}\n2024-03-31,-inf", {}, "'sold' is infinite"),
    ("label_of_more_digits", f"day,sold\n{DIGITS}", {}, "which has seven digits: subtract a constant"),
    (
        "labels_of_an_entity_too_far_apart",
        f"day,shop,sold\n{APART}",
        {"entity": "shop"},
        "of one shop are more than 28 days apart in the rows of the training, so no earlier value can be",
    ),
    (
        "known_later_only",
        "day,price,sold\n" + "\n".join(f"{d},{n if n > 80 else ''},{n}" for n, d in enumerate(DAYS)),
        {"known": "price"},
        "'price' is empty in the rows of the training: leave it out of --known",
    ),
    (
        "known_beyond_float32",
        "day,price,sold\n" + "\n".join(f"{d},{n}e200,{n}" for n, d in enumerate(DAYS)),
        {"known": "price"},
        "'price' holds numbers beyond float32",
    ),
    ("huge_label", f"day,sold\n{HUGE}", {}, "numbers up to 9e+27 that differ by about"),
    ("label_beyond_float32", f"day,sold\n{HUGE}\n2024-03-31,1e300", {}, "in another unit"),
    ("tiny_label", f"day,sold\n{HUGE.replace('e26', 'e-26')}", {}, "write the column in another unit"),
    ("label_typo", f"day,sold\n{DATED}", {"label": "sodl"}, "did you mean 'sold'?"),
    ("label_of_dates", f"day,sold\n{DATED}", {"label": "day"}, "'day' holds dates"),
    ("label_of_names", f"day,x,sold\n{NAMES}", {"label": "x"}, "'x' has 90 different texts in 90 rows"),
    ("known", f"day,sold,paid\n{SOLD}", {"known": "prise"}, "--known prise is not a column"),
    (
        "known_label",
        f"day,sold,paid\n{SOLD}",
        {"known": "paid", "label": "paid"},
        "is the label, which the model",
    ),
    ("known_time", f"day,sold,paid\n{SOLD}", {"known": "day"}, "is the event time"),
    ("known_names", f"day,x,sold\n{NAMES}", {"known": "x"}, "--known x has 90 different texts in 90 rows"),
]
"""Name, file, options, and words of the message."""


@pytest.mark.parametrize(
    ("text", "options", "said"), [pytest.param(*one, id=name) for name, *one in MISTAKES]
)
def test_an_unusable_file_is_refused_in_one_line(
    sandbox: DefsFolderSandbox, tmp_path: Path, text: str | bytes, options: dict[str, str], said: str
) -> None:
    file = tmp_path / "table.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(click.ClickException) as refused:
        sandbox.scaffold_component(TrainingPipeline, "shop", scaffold_params={"from": str(file), **options})
    assert said in refused.value.message
    assert str(file) in refused.value.message or "--" in refused.value.message
    assert "\n" not in refused.value.message
    assert not (sandbox.defs_folder_path / "shop").exists()


OTHER_FORMS = pl.DataFrame(
    {
        "Day": DAYS[:40] * 2,
        "shop": ["north"] * 40 + ["south"] * 40,
        "open": [day.day % 2 == 0 for day in DAYS[:40]] * 2,
        "fee": [f"${day.day}.50" for day in DAYS[:40]] * 2,
        "sold": [day.day for day in DAYS[:40]] * 2,
    }
)


def _workbook(frame: pl.DataFrame) -> bytes:
    """Return a workbook with the rows as a sheet: dates are texts."""
    rows = [frame.columns, *frame.cast({"Day": pl.String}).rows()]
    cells = "".join(
        "<row>"
        + "".join(
            f"<c><v>{one}</v></c>"
            if isinstance(one, int) and not isinstance(one, bool)
            else f'<c t="inlineStr"><is><t>{str(one).lower() if isinstance(one, bool) else one}</t></is></c>'
            for one in row
        )
        + "</row>"
        for row in rows
    )
    main, package = (
        "http://schemas.openxmlformats.org/spreadsheetml/2006/main",
        "http://schemas.openxmlformats.org/",
    )
    office = f"{package}officeDocument/2006/relationships"
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{package}package/2006/content-types"/>',
        "_rels/.rels": f'<Relationships xmlns="{package}package/2006/relationships"><Relationship Id="r1" '
        f'Type="{office}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{package}package/2006/relationships">'
        f'<Relationship Id="r1" Type="{office}/worksheet" Target="worksheets/sheet1.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{main}" xmlns:r="{office}"><sheets>'
        '<sheet name="a" sheetId="1" r:id="r1"/></sheets></workbook>',
        "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{main}"><sheetData>{cells}</sheetData></worksheet>',
    }
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, text in parts.items():
            archive.writestr(name, text)
    return made.getvalue()


WRITE = {
    "parquet": lambda frame: frame.write_parquet,
    "jsonl": lambda frame: frame.write_ndjson,
    "xlsx": lambda frame: lambda path: path.write_bytes(_workbook(frame)),
}


@pytest.mark.parametrize("suffix", WRITE)
def test_each_form_of_a_file_becomes_the_same_table(
    sandbox: DefsFolderSandbox, tmp_path: Path, suffix: str
) -> None:
    file = tmp_path / f"table.{suffix}"
    WRITE[suffix](OTHER_FORMS)(file)
    folder = sandbox.scaffold_component(TrainingPipeline, "shop", scaffold_params={"from": str(file)})
    _is_in_house_style(folder, "check", "format")
    with sandbox.build_component_tree() as tree:
        dataset = _spec(list(tree.get_all_components(SpecComponent)), Dataset)
        read = resolve_function(dataset.source.function)
        frames = {str(day): read(day) for day in DAYS[:40]}
        assert resolve_function(dataset.source.latest)() == DAYS[39]
    assert not any(check_partitions(frames, dataset.contract).values())
    expected = OTHER_FORMS.select(
        pl.col("Day").alias("day"),
        "shop",
        "open",
        pl.col("fee").str.strip_chars("$").cast(pl.Float64),
        "sold",
    )
    rows = pl.concat(frames.values()).drop("known_at")
    assert rows.sort("day", "shop").equals(expected.sort("day", "shop"))


TYPED_DATES = {
    "whole_years": pl.Series("Year", YEARS),
    "years_of_floats": pl.Series("Year", YEARS, pl.Float64),
    "categories": pl.Series("at", [f"{year}Q1" for year in YEARS], pl.Categorical()),
    "months_of_digits": pl.Series("month", [year * 100 + 1 for year in YEARS]),
    "days_of_digits": pl.Series("at", [year * 10000 + 101 for year in YEARS]),
}


@pytest.mark.parametrize("suffix", WRITE)
@pytest.mark.parametrize("dates", TYPED_DATES.values(), ids=TYPED_DATES)
def test_dates_of_numbers_and_categories_are_read(
    sandbox: DefsFolderSandbox, tmp_path: Path, dates: pl.Series, suffix: str
) -> None:
    """Parquet, JSON lines and Excel have numbers and categories where CSV has texts."""
    file = tmp_path / f"table.{suffix}"
    sold = pl.Series("sold", [year % 7 for year in YEARS])
    WRITE[suffix](pl.DataFrame([dates, sold]).with_columns(pl.lit("a").alias("Day")))(file)
    folder = sandbox.scaffold_component(TrainingPipeline, "shop", scaffold_params={"from": str(file)})
    _is_in_house_style(folder, "check", "format")
    with sandbox.build_component_tree() as tree:
        dataset = _spec(list(tree.get_all_components(SpecComponent)), Dataset)
        read = resolve_function(dataset.source.function)
        frames = {f"{year}-01-01": read(date(year, 1, 1)) for year in YEARS}
    assert dataset.cadence.kind == "yearly"
    assert not any(check_partitions(frames, dataset.contract).values())
    rows = pl.concat(frames.values())
    assert rows[dates.name.lower()].to_list() == [date(year, 1, 1) for year in YEARS]
    assert rows["sold"].equals(sold)


@pytest.mark.parametrize(
    ("heading", "form"),
    [
        *(("at", form) for form in ("%Yq%q", "Q%q/%Y", "%qQ%y", "%qQ%Y", "Q%q %y", "%yQ%q", "FY%Y")),
        ("quarter", "%Y%q"),
        ("fiscal_year", "%Y"),
    ],
)
def test_a_quarter_or_a_year_is_known_by_its_form(tmp_path: Path, heading: str, form: str) -> None:
    texts = [date(year, 1, 1).strftime(form.replace("%q", "1")) for year in YEARS]
    file = tmp_path / "table.csv"
    file.write_text("\n".join([f"{heading},sold", *(f"{text},{n}" for n, text in enumerate(texts))]))
    assert infer(read_rows(file)).keys == [f"{year}-01-01" for year in YEARS]


def test_parts_of_a_date_may_be_numbers(sandbox: DefsFolderSandbox, tmp_path: Path) -> None:
    """Whole numbers of a Parquet file, and floats as pandas makes them of a column with a gap."""
    file = tmp_path / "table.parquet"
    years, months = [2015.0 + n // 12 for n in range(60)], [n % 12 + 1 for n in range(60)]
    pl.DataFrame({"year": years, "month": months, "sold": months}).write_parquet(file)
    sandbox.scaffold_component(TrainingPipeline, "shop", scaffold_params={"from": str(file)})
    with sandbox.build_component_tree() as tree:
        dataset = _spec(list(tree.get_all_components(SpecComponent)), Dataset)
        rows = resolve_function(dataset.source.function)(date(2016, 12, 1))
    assert rows.drop("known_at").rows() == [(date(2016, 12, 1), 12)]
    [guess] = [one for one in infer(read_rows(file)).guesses if one.about == "event time"]
    assert guess.value == "year_month, written as 2024-01: 'year', 'month' joined"


@pytest.mark.parametrize("form", ["%a %d.%m.%Y", "%A, %B %d, %Y", "%a, %d %b %Y", "%a %Y-%m-%d %H:%M"])
def test_dates_may_begin_with_their_weekday(tmp_path: Path, form: str) -> None:
    file = tmp_path / "table.csv"
    file.write_text("\n".join(["day,sold", *(f'"{day:{form}}",{day.day}' for day in DAYS)]))
    table = infer(read_rows(file), GivenOptions(time_zone="UTC"))
    assert table.time.form == form
    assert table.keys == [f"{day}" for day in DAYS]


def test_what_a_person_should_look_at_is_printed(tmp_path: Path) -> None:
    """A column that is filled once the customer has left, and a column of numbers with a word in it."""
    draw = Random(3)
    lines: list[str] = []
    for n in range(600):
        left = draw.random() < 0.2
        fee = "gratis" if n == 7 else f"{draw.gauss(20, 3):.2f}"
        reason = draw.choice(["price", "moved"]) if left else ""
        lines.append(f"{DAYS[n // 7]},c{n},{fee},{draw.choice('ab')},{reason},{'yes' if left else 'no'}")
    file = tmp_path / "table.csv"
    file.write_text("\n".join(["day,customer,fee,plan,reason,left", *lines]))
    table = infer(read_rows(file), GivenOptions(label="left", known=("plan", "reason")))
    found = {about: value for about, value, _ in table.guesses}
    assert found["suspicious"].startswith("reason alone tells left in 100.0 % of ")
    assert found["as text"] == "fee (line 9 is not a number)"
    without = infer(read_rows(file), GivenOptions(label="left", known=("plan",)))
    assert "suspicious" not in {one.about for one in without.guesses}


@pytest.mark.parametrize("cadence", ["daily", "weekly", "monthly"])
def test_the_latest_partition_of_a_file_is_over(
    sandbox: DefsFolderSandbox, tmp_path: Path, cadence: CadenceKind
) -> None:
    """A plan has rows of days to come. A sensor would request them, and the run would be refused."""
    today = datetime.now(UTC).date()
    days = [today + timedelta(days=n) for n in range(-700, 5)]
    file = tmp_path / "table.csv"
    file.write_text("\n".join(["day,sold", *(f"{day},{day.day}" for day in days)]))
    options = {"from": str(file), "cadence": cadence}
    folder = sandbox.scaffold_component(TrainingPipeline, "shop", scaffold_params=options)
    _is_in_house_style(folder, "check", "format")
    with sandbox.build_component_tree() as tree:
        dataset = _spec(list(tree.get_all_components(SpecComponent)), Dataset)
        found = resolve_function(dataset.source.latest)()
    units = Cadence(cadence, days[0], days[-1])
    assert units.complete(found) == units.complete(today - timedelta(days=1))


@pytest.mark.parametrize(("cadence", "last"), [("daily", "2024-03-28"), ("weekly", "2024-03-18")])
def test_partitions_that_run_or_come_are_left_to_later_runs(tmp_path: Path, cadence: str, last: str) -> None:
    """Dagster has no partition before it is over, so a command for it would be refused."""
    file = tmp_path / "table.csv"
    lines = [f"{day},{day.day}" for day in [date(2023, 9, 1) + timedelta(days=n) for n in range(211)]]
    file.write_text("\n".join(["day,sold", *reversed(lines)]))
    table = infer(
        read_rows(file),
        GivenOptions(cadence=cadence, time_zone="Europe/Berlin"),
        now=datetime(2024, 3, 28, 23, 30, tzinfo=UTC),
    )
    assert table.keys[-1] == last
    assert [one.value.partition(",")[0] for one in table.guesses if one.about == "not over"] == [
        "1 row" if cadence == "daily" else "5 rows"
    ]


@pytest.mark.parametrize(("hours", "last"), [(720, "2024-01-30"), (719, "2024-01-29"), (698, "2024-01-29")])
def test_a_day_of_which_a_file_has_a_part_is_left_to_later_runs(
    tmp_path: Path, hours: int, last: str
) -> None:
    """Days of UTC end within a day of Berlin. Its two hours made the volume rule of each day useless."""
    file = tmp_path / "table.csv"
    begin = datetime(2023, 12, 31, 23, tzinfo=UTC)
    moments = [begin + timedelta(hours=n) for n in range(hours)]
    file.write_text("\n".join(["at,sold", *(f"{at:%Y-%m-%d %H:%MZ},{at.hour}" for at in moments)]))
    table = infer(read_rows(file), GivenOptions(time_zone="Europe/Berlin"))
    assert table.keys[-1] == last


def test_empty_labels_of_days_to_come_do_not_loosen_the_contract(tmp_path: Path) -> None:
    """A day that is over and has no label was accepted, because the plan of tomorrow had none either."""
    file = tmp_path / "table.csv"
    lines = [f"{day},{day.day}" for day in [date(2024, 1, 1) + timedelta(days=n) for n in range(60)]]
    file.write_text("\n".join(["day,sold", *lines, "2024-03-01,", "2024-03-02,"]))
    now = datetime(2024, 3, 1, 12, tzinfo=UTC)
    assert [one.nullable for one in infer(read_rows(file), now=now).columns] == [False, False]
    later = datetime(2024, 3, 9, tzinfo=UTC)
    assert [one.nullable for one in infer(read_rows(file), now=later).columns] == [False, True]


@pytest.mark.parametrize(("calendar", "named"), [("", "on_holiday"), ("DE", "on_holiday_in_file")])
def test_a_feature_of_holidays_takes_no_columns_name(tmp_path: Path, calendar: str, named: str) -> None:
    file = tmp_path / "table.csv"
    file.write_text("\n".join(["day,on_holiday,sold", *(f"{day},{day.day % 2},{day.day}" for day in DAYS)]))
    table = infer(read_rows(file), GivenOptions(holidays=calendar))
    assert [one.name for one in table.columns] == ["day", named, "sold"]
    guesses = {one.about: one.value for one in table.guesses}
    assert guesses.get("holidays") == ("DE: 2 of 90 days" if calendar else None)


def test_other_columns_are_offered_only_if_they_would_do(tmp_path: Path) -> None:
    """Parts of the date were offered as label, and cadences that are shorter than the dates."""
    file = tmp_path / "table.csv"
    lines = [f"{year}-{n:02}-01,{year},{n},{year % 7},{n % 5}" for year in YEARS for n in range(1, 13)]
    file.write_text("\n".join(["day,year,month,rain,sold", *lines]))
    guesses = {about: (value, otherwise) for about, value, otherwise in infer(read_rows(file)).guesses}
    assert guesses["event time"] == ("day, written as 2024-01-31", "")
    assert guesses["cadence"] == ("monthly", "--cadence quarterly")
    assert guesses["entity"][1] == ""
    assert guesses["label"][1] == "rain could be predicted, too: --label rain"
    assert "year, month: parts of the date" in guesses["left out"][0]
    longer = infer(read_rows(file), GivenOptions(cadence="quarterly")).guesses
    assert ("cadence", "quarterly", "--cadence monthly or yearly") in longer


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        pytest.param(
            "t.parquet", b"day,sold\n", "is not Parquet: it begins with 'day,sold'", id="csv_as_parquet"
        ),
        pytest.param("t.parquet", b"PAR1 cut off", "is not readable as Parquet", id="half_a_file"),
        pytest.param("t.xlsx", b"day,sold\n", "is not an Excel workbook", id="csv_as_workbook"),
        pytest.param(
            "t.xlsx", b"PK\x03\x04 cut off", "is not readable as an Excel workbook", id="half_a_workbook"
        ),
        pytest.param("t.jsonl", b"day,sold\n", "is not JSON lines", id="csv_as_json"),
        pytest.param("t.jsonl", b'{"day": 1}\n{"day": ', "line 2", id="half_a_line"),
        pytest.param("t.jsonl", b'{"a": 1}\n{"a": "x"}\n', "line 2: 'a' has values of", id="two_types"),
        pytest.param("t.jsonl", b'{"a": 1}\n{"a": 2}\n', "no column holds dates: there are a", id="no_dates"),
    ],
)
def test_a_file_that_is_not_of_its_form_is_named(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(CsvRefused) as refused:
        infer(read_rows(file))
    assert said in str(refused.value)
    assert str(file) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_missing_file_and_a_skipped_hour_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CsvRefused, match="is not a file"):
        read_rows(tmp_path / "none.csv")
    file = tmp_path / "hours.csv"
    hours = [datetime(2024, 3, 20) + timedelta(hours=n) for n in range(24 * 25)]  # noqa: DTZ001
    file.write_text("at,sold\n" + "\n".join(f"{hour:%Y-%m-%d %H:%M},{hour.hour}" for hour in hours))
    assert len(infer(read_rows(file), GivenOptions(time_zone="UTC")).keys) == 25
    with pytest.raises(CsvRefused, match="'at' is a time that clocks in Europe/Berlin show twice or never"):
        infer(read_rows(file), GivenOptions(time_zone="Europe/Berlin"))


def test_columns_keep_each_character_that_a_number_would_lose(tmp_path: Path) -> None:
    """Phone numbers, postcodes and long numbers became floats, and `NA`, Namibia, became a missing value."""
    file = tmp_path / "table.csv"
    words = "01234,+4930,12345678901234567890,0.12345678901234567890,NA"
    file.write_text(
        "day,post,phone,order,share,country,sold\n" + "".join(f"{d},{words},{d.day}\n" for d in DAYS)
    )
    table = infer(read_rows(file))
    types = {column.name: (column.dtype, column.nullable) for column in table.columns}
    assert types == {
        "day": ("date", False),
        **dict.fromkeys(("post", "phone", "order", "share", "country"), ("string", False)),
        "sold": ("int64", False),
    }
    assert ("as text", "order, share: as numbers, digits would be lost", "") in table.guesses


def test_a_dataset_alone_can_begin_with_a_file(sandbox: DefsFolderSandbox, tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_text("\n".join(["day,sold", *CASES["a_row_a_day"].lines]))
    folder = sandbox.scaffold_component(Dataset, "shop", scaffold_params={"from": str(file)})
    assert sorted(path.name for path in folder.iterdir()) == ["__init__.py", "defs.yaml", "source.py"]


PLAIN = st.one_of(
    st.integers(-(10**16), 10**16).map(str),
    st.floats(allow_nan=False, width=32).map(str),
    st.from_regex(r"-?[0-9]{1,4}[.,]?[0-9]{0,4}", fullmatch=True),
    st.sampled_from(["", "NA", " 7", "0", "1.000", "1.234", "-0", "007", "2e3", "1.50", "yes", "no", "12 %"]),
)


@given(values=st.lists(PLAIN, min_size=1, max_size=6))
def test_plain_numbers_are_read_at_once_as_one_by_one(values: list[str]) -> None:
    """Thousands of columns are asked together; a column that leaves a doubt is not among the answers."""
    texts = pl.Series("x", values)
    found = plain_columns(texts.to_frame())
    rows = FileRows(Path("table.csv"), "csv", texts.to_frame(), b"")
    for name, column in found.items():
        (slow,) = typed_columns(rows, texts.to_frame(), {"x": "x"}, {}, None, "UTC")
        assert_series_equal(column, slow.values)
        assert name == "x"
        assert (slow.written, slow.chain, slow.is_inexact) == ("", None, False)


def test_a_table_of_thousands_of_columns_is_read_in_seconds(tmp_path: Path) -> None:
    """It took 15 CPU seconds for 1,000 columns, and more than in proportion for more."""
    draw = Random(1)
    heading = ["day", *(f"c{n}" for n in range(3000)), "sold"]
    kinds = [lambda: f"{draw.gauss(0, 1):.4f}", lambda: draw.choice("abc"), lambda: str(draw.randint(0, 90))]
    lines = [
        ",".join(
            [str(day), *(kinds[n % 10 % 3 if n % 10 < 3 else 0]() for n in range(3000)), str(draw.random())]
        )
        for day in [date(2023, 1, 1) + timedelta(n) for n in range(400)]
    ]
    file = tmp_path / "wide.csv"
    file.write_text("\n".join([",".join(heading), *lines]))
    began = time.process_time()
    table = infer(read_rows(file))
    assert time.process_time() - began < 15, "5 on an idle machine"
    assert len(table.columns) == 3002
    assert len(table.past.numbers) + len(table.past.words) <= 12


@pytest.mark.parametrize("first", [0, 1, 1000])
def test_a_column_that_numbers_the_rows_is_their_key_whatever_its_name(tmp_path: Path, first: int) -> None:
    """The remedy of a file whose rows nothing tells apart."""
    file = tmp_path / "table.csv"
    rows = f"{HALVES}\n{HALVES.replace('.5', '.25')}"
    file.write_text(f"day,sold\n{rows}")
    with pytest.raises(CsvRefused, match="add a column that numbers the rows"):
        infer(read_rows(file))
    numbered = "\n".join(f"{n},{row}" for n, row in enumerate(rows.splitlines(), first))
    file.write_text(f"poll,day,sold\n{numbered}")
    assert infer(read_rows(file)).primary_key == ("poll",)


def test_a_remedy_can_be_typed_with_a_heading_of_two_words(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    lines = [f"{2015 + n // 12},{n % 12 + 1},{n * 7 % 11}" for n in range(60)]
    file.write_text("\n".join(["fiscal year,month,sales", *lines]))
    with pytest.raises(CsvRefused, match="--date 'fiscal year,month', which"):
        infer(read_rows(file))
