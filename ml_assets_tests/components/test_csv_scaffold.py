"""`dg scaffold … --from FILE.csv`: tables of several shapes become pipelines that load and know no future.

`tour` trains one from a terminal.
"""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from random import Random
from zoneinfo import ZoneInfo

import click
import polars as pl
import pytest
from dagster.components.testing import DefsFolderSandbox, create_defs_folder_sandbox

from ml_assets.components import Dataset, FeatureTable, TrainingPipeline
from ml_assets.components.base import SpecComponent
from ml_assets.components.scaffold.csv_tables import CsvRefused, infer
from ml_assets.components.specs import FeatureTableSpec
from ml_assets.data.features.cut_and_rebuild import Build, LeakReport, leak_test
from ml_assets.data.tables.cadence import Cadence
from ml_assets.data.tables.user_code import building, resolve_function
from ml_assets.data.validation.check import check_partitions
from ml_assets.data.validation.volume import VolumePast, volume_findings

ROOT = Path(__file__).parents[2]
DAYS = [date(2024, 1, 1) + timedelta(days=n) for n in range(90)]
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
            f"{datetime(2024, 2, 20, tzinfo=ZoneInfo('UTC')) + timedelta(hours=n):%Y-%m-%dT%H:%M:%SZ}\t{n % 24}"
            for n in range(24 * 50)
        ],
        ("at",),
        zone="America/New_York",
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
        scaffold_params={"from": str(file), "time_zone": case.zone, "known": case.known},
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
    others = [f"{name}_{what}" for name in case.past_numbers for what in ("last", "change", "mean")]
    of_past = [name for name in model.features.numeric if name.endswith(("_last", "_change", "_mean"))]
    assert of_past == [f"{case.label}_{what}" for what in ("last", "change", "mean")] + others
    assert (
        model.features.numeric[len(model.features.numeric) - len(case.known_numbers) :] == case.known_numbers
    )
    assert {*case.known_numbers, *case.known_words}.isdisjoint(*(one.columns for one in section.known_at))
    assert model.features.label == case.label
    assert cadence.kind == case.cadence
    assert latest == days[-1]


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


def test_a_wide_table_gives_features_of_a_few_columns(tmp_path: Path) -> None:
    draw, names = Random(1), [f"sensor_{n}" for n in range(40)]
    lines, strength = [], [0.0] * 40
    for day in DAYS:
        sold = sum(strength[:30]) + draw.gauss(0, 1)
        strength = [draw.gauss(0, 1) for _ in names]
        lines.append(",".join([str(day), *(f"{value:.3f}" for value in strength), f"{sold:.3f}"]))
    file = tmp_path / "table.csv"
    file.write_text("\n".join([",".join(["day", *names, "sold"]), *lines]))
    table = infer(file)
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
    assert infer(file).past.numbers == taken


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
SOLD = "\n".join(f"{day},{day.day},{day.day}" for day in DAYS[:30])


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        pytest.param("", {}, "empty or not a CSV file", id="empty"),
        pytest.param("day,sold\n", {}, "no rows below its first line", id="heading_only"),
        pytest.param("some words\nand more", {}, "has one column", id="text"),
        pytest.param(b"\x89PNG\r\n\x1a\n\xff\xd8", {}, "save it as CSV, UTF-8", id="picture"),
        pytest.param("a,b\n1,2\n", {}, "no column holds dates: there are a, b", id="no_date"),
        pytest.param("day,sold\n01/02/2024,1\n", {}, "write dates as 2024-01-31", id="day_or_month_first"),
        pytest.param(f"day,sold\n{DATED}\n,3", {}, "'day' is empty in 1 rows", id="row_without_date"),
        pytest.param(
            "at,sold\n2024-01-01 08:00,1\n",
            {},
            "without an offset from UTC: give their time zone",
            id="no_zone",
        ),
        pytest.param("day,sold\n01/31/24,1\n", {}, "no column holds dates", id="short_year"),
        pytest.param('day,sold\n2024-01-01,"1,234"\n', {}, "a comma between thousands", id="thousands"),
        pytest.param("day,sold,sold\n2024-01-01,1,2\n", {}, "names sold more than once", id="named_twice"),
        pytest.param("day,sold,a\n2024-01-01,1\n", {}, "line 2 has fewer than 3 fields", id="short_line"),
        pytest.param("day,sold\n2024-01-01,1\n", {}, "needs at least 20", id="too_short"),
        pytest.param(
            f"day,sold\n{DATED}\n{DATED}", {}, "lines 2 and 32, for example, share day", id="no_key"
        ),
        pytest.param(f"day,sold\n{DATED}", {}, "no column can be predicted", id="constant"),
        pytest.param(f"day,sold\n{DATED}", {"label": "sodl"}, "did you mean 'sold'?", id="label_typo"),
        pytest.param(f"day,sold\n{DATED}", {"label": "day"}, "a label is a number", id="label_of_dates"),
        pytest.param(
            f"day,sold,paid\n{SOLD}", {"known": "prise"}, "--known prise is not a column", id="known"
        ),
        pytest.param(
            f"day,sold,paid\n{SOLD}", {"known": "paid"}, "is the label, which the model", id="known_label"
        ),
        pytest.param(f"day,sold,paid\n{SOLD}", {"known": "day"}, "is the event time", id="known_time"),
        pytest.param(
            f"day,sold\n{DATED}", {"time_zone": "Europe/Berlim"}, "did you mean 'Europe/Berlin'?", id="zone"
        ),
    ],
)
def test_an_unusable_file_is_refused_in_one_line(
    sandbox: DefsFolderSandbox, tmp_path: Path, text: str | bytes, options: dict[str, str], said: str
) -> None:
    file = tmp_path / "table.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(click.ClickException) as refused:
        sandbox.scaffold_component(TrainingPipeline, "shop", scaffold_params={"from": str(file), **options})
    assert said in refused.value.message
    assert "\n" not in refused.value.message
    assert not (sandbox.defs_folder_path / "shop").exists()


def test_a_missing_file_and_a_skipped_hour_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CsvRefused, match="is not a file"):
        infer(tmp_path / "none.csv")
    file = tmp_path / "hours.csv"
    hours = [datetime(2024, 3, 20) + timedelta(hours=n) for n in range(24 * 25)]  # noqa: DTZ001
    file.write_text("at,sold\n" + "\n".join(f"{hour:%Y-%m-%d %H:%M},{hour.hour}" for hour in hours))
    assert infer(file, time_zone="UTC").partitions == 25
    with pytest.raises(CsvRefused, match="'at' is a time that clocks in Europe/Berlin show twice or never"):
        infer(file, time_zone="Europe/Berlin")


def test_columns_keep_each_character_that_a_number_would_lose(tmp_path: Path) -> None:
    """Phone numbers, postcodes and long numbers became floats, and `NA`, Namibia, became a missing value."""
    file = tmp_path / "table.csv"
    words = "01234,+4930,12345678901234567890,0.12345678901234567890,NA"
    file.write_text(
        "day,post,phone,order,share,country,sold\n" + "".join(f"{d},{words},{d.day}\n" for d in DAYS)
    )
    table = infer(file)
    types = {column.name: (column.dtype, column.nullable) for column in table.columns}
    assert types == {
        "day": ("date", False),
        **dict.fromkeys(("post", "phone", "order", "share", "country"), ("string", False)),
        "sold": ("int64", False),
    }
    assert "as text      order, share: as numbers, digits would be lost" in table.notes


def test_a_dataset_alone_can_begin_with_a_file(sandbox: DefsFolderSandbox, tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_text("\n".join(["day,sold", *CASES["a_row_a_day"].lines]))
    folder = sandbox.scaffold_component(Dataset, "shop", scaffold_params={"from": str(file)})
    assert sorted(path.name for path in folder.iterdir()) == ["__init__.py", "defs.yaml", "source.py"]
