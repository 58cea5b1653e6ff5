"""Costs of trainings: reservations with prices, by each group, and the table of prices with its faults."""

import json
import time
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

import ml_assets
from ml_assets.context.home import make_home
from ml_assets.extras.costs.budget import BudgetSpent, budgets_of
from ml_assets.extras.costs.costs import By, Costs, costs_of, read_records
from ml_assets.extras.costs.prices import PricesRefused, PriceTable, read_prices
from ml_assets.model.steps.goodput import Goodput
from ml_assets.model.steps.usage import (
    Usage,
    UsageRecord,
    UsageState,
    UsedAttempt,
    UsedLaunch,
    read_usage,
    usage_file,
)
from ml_assets_tests.cli.terminal import Terminal
from resources.artifacts import Artifacts, artifacts_of
from resources.job.events import EVENTS, TrainingEvent, folder_of_training
from resources.job.job import TrainingJob
from resources.job.reserved import Reserved
from resources.settings import Settings

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp()
HOUR = 3600.0
PRICES = PriceTable(currency="EUR", gpu_hour={"H200": 3.0, "H200 MIG": 1.0}, core_hour=0.05, gib_hour=0.01)


def _attempt(
    began: float, hours: float, state: UsageState = "completed", gpu: str = "NVIDIA H200", places: int = 0
) -> UsedAttempt:
    """Return an attempt of two pods with 4 GPUs, 10 cores and 100 GiB each."""
    reading = Reserved(
        job=f"job-{began}",
        at=began + hours * HOUR,
        began=began,
        places=places,
        place_seconds=2 * hours * HOUR,
        cores=10.0,
        memory_bytes=100 * 2**30,
        gpus=4,
    )
    return UsedAttempt(reading=reading, gpus=4, gpu=gpu, state=state)


def _record(model: str, *attempts: UsedAttempt, partition: str = "2026-11-19", **changes: Any) -> UsageRecord:
    launch = UsedLaunch(
        id="a",
        run_id="run",
        author="ada",
        began=attempts[0].reading.began,
        at=attempts[-1].reading.at,
        state=attempts[-1].state,
    )
    facts: dict[str, Any] = {
        "environment": "local",
        "env": "",
        "model": model,
        "partition": partition,
        "fingerprint": model[0] * 64,
        "launches": (launch,),
        "attempts": attempts,
        "goodput": Goodput(),
    }
    return UsageRecord(**facts | changes)


RECORDS = [
    _record("churn", _attempt(NOON, 1, "preempted"), _attempt(NOON + 2 * HOUR, 2)),
    _record("spam", _attempt(NOON + 10 * HOUR, 4, "diverged", gpu="NVIDIA B200")),
]
"""Training of 3 hours in two attempts, and one of 4 hours over midnight on a GPU without a price."""


def _money(found: Costs) -> dict[str, float]:
    return {one.name: round(one.spent.money or 0.0, 6) for one in found.rows}


OF_AN_HOUR = 2 * (4 * 3.0 + 10 * 0.05 + 100 * 0.01)
WITHOUT_GPUS = 2 * (10 * 0.05 + 100 * 0.01)


@pytest.mark.parametrize(
    ("by", "money"),
    [
        ("pipeline", {"churn": 3 * OF_AN_HOUR, "spam": 4 * WITHOUT_GPUS}),
        ("partition", {"churn 2026-11-19": 3 * OF_AN_HOUR, "spam 2026-11-19": 4 * WITHOUT_GPUS}),
        ("status", {"preempted": OF_AN_HOUR, "completed": 2 * OF_AN_HOUR, "diverged": 4 * WITHOUT_GPUS}),
        ("gpu", {"NVIDIA H200": 3 * OF_AN_HOUR, "NVIDIA B200": 4 * WITHOUT_GPUS}),
        ("day", {"2026-11-20": 3 * OF_AN_HOUR + 2 * WITHOUT_GPUS, "2026-11-21": 2 * WITHOUT_GPUS}),
        ("group", {"growth": 3 * OF_AN_HOUR, "not declared": 4 * WITHOUT_GPUS}),
    ],
)
def test_every_reservation_costs_in_its_group(by: By, money: dict[str, float]) -> None:
    found = costs_of(RECORDS, PRICES, by, groups={"churn": "growth"})
    assert _money(found) == pytest.approx(money)
    assert found.total.spent.money == pytest.approx(sum(money.values()))
    assert (found.total.trainings, found.currency) == (2, "EUR")
    assert (found.total.spent.gpu_hours, found.total.spent.unpriced_gpu_hours) == (8 * 7, 8 * 4)
    assert found.unpriced == ["NVIDIA B200"]


def test_gpu_hours_without_kept_work_are_idle() -> None:
    """The wait in a queue holds no GPU, so it is none of them."""
    parts = Goodput(queue=5 * HOUR, start_up=0.5 * HOUR, compute=1.5 * HOUR, lost_work=HOUR)
    one, other = (replace(record, goodput=parts) for record in RECORDS)
    found = costs_of([one, replace(other, goodput=Goodput())], PRICES, "pipeline")
    assert [(row.name, row.spent.gpu_hours, row.spent.idle_gpu_hours) for row in found.rows] == [
        ("churn", 24, 12),
        ("spam", 32, 0),
    ]


def test_days_before_the_first_one_that_counts_are_left_out() -> None:
    found = costs_of(RECORDS, PRICES, "day", since=date(2026, 11, 21))
    assert _money(found) == pytest.approx({"2026-11-21": 2 * WITHOUT_GPUS})
    assert costs_of(RECORDS, PRICES, "pipeline", since=date(2026, 11, 21)).total.spent.gpu_hours == 8 * 2


def test_without_prices_there_are_hours_and_no_money() -> None:
    found = costs_of(RECORDS, None, "pipeline")
    assert found.total.spent.money is None
    assert {one.spent.money for one in found.rows} == {None}
    assert (found.total.spent.core_hours, found.total.spent.gib_hours) == (20 * 7, 200 * 7)
    assert found.unpriced == []


@pytest.mark.parametrize(
    ("name", "price"),
    [("NVIDIA H200", 3.0), ("NVIDIA H200 MIG 1g.18gb", 1.0), ("NVIDIA H20", None), ("", None)],
)
def test_the_kind_with_the_most_words_prices_a_gpu(name: str, price: float | None) -> None:
    assert PRICES.of_gpu(name) == price


def test_places_of_a_dead_launcher_count_up_to_the_last_sign_of_life(tmp_path: Path) -> None:
    """Its last record is of the first hour, and the workers went on for another half."""
    artifacts = artifacts_of(None, tmp_path)
    record = _record("churn", _attempt(NOON, 1, "running", places=2))
    _store(artifacts, record)
    folder = folder_of_training("churn", record.fingerprint)
    events = [
        TrainingEvent(kind="started", step=0, time=NOON + 60, values={"attempt": 1, "world_size": 8}),
        TrainingEvent(kind="metrics", step=9, time=NOON + 1.5 * HOUR, values={}),
    ]
    (artifacts.folder(folder) / EVENTS).write_text("\n".join(one.to_line() for one in events))
    artifacts.push(folder, [EVENTS])
    found = costs_of(read_records(artifacts, "local"), PRICES, "status")
    assert _money(found) == pytest.approx({"lost": 1.5 * OF_AN_HOUR})
    assert read_records(artifacts, "other") == []
    alive = _record("churn", _attempt(time.time() - HOUR, 1, "running", places=2))
    _store(artifacts, alive)
    assert _money(costs_of(read_records(artifacts, "local"), PRICES, "status")) == pytest.approx(
        {"running": OF_AN_HOUR}
    )


def test_an_attempt_that_a_clock_ended_before_it_began_costs_on_its_day() -> None:
    """The clock was set back over midnight."""
    held = _attempt(NOON, 1).reading
    back = UsedAttempt(
        reading=replace(held, at=NOON - 24 * HOUR), gpus=4, gpu="NVIDIA H200", state="completed"
    )
    for by in ("day", "pipeline"):
        found = costs_of([_record("churn", back)], PRICES, by)
        assert [one.spent.money for one in found.rows] == pytest.approx([OF_AN_HOUR])


def test_a_record_of_a_later_release_is_read(tmp_path: Path) -> None:
    """A platform that went back to an earlier release ignores the keys that it does not know."""
    artifacts = artifacts_of(None, tmp_path)
    document = json.loads(RECORDS[0].to_json())
    for part in (document, document["launches"][0], document["attempts"][0], document["goodput"]):
        part["of a later release"] = 1
    document["attempts"][0]["reading"]["watts"] = 700.0
    _write(artifacts, RECORDS[0], json.dumps(document).encode())
    assert read_records(artifacts, "local") == [RECORDS[0]]


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", RECORDS[0].to_json().encode()[:-200], b"\xff\xfe", b"[]", b'{"launches": []}'],
    ids=["empty", "cut", "half", "binary", "list", "keys"],
)
def test_a_damaged_record_is_named_with_the_remedy(tmp_path: Path, damage: bytes) -> None:
    terminal = Terminal(tmp_path / "home")
    make_home(Settings(home=terminal.home))
    artifacts = artifacts_of(None, terminal.home / "artifacts")
    _store(artifacts, RECORDS[1])
    _write(artifacts, RECORDS[0], damage)
    said = terminal("costs")
    assert (said.status, len(said.err.splitlines())) == (1, 1)
    folder, file = usage_file("churn", RECORDS[0].fingerprint)
    assert f"{folder}/{file} is damaged" in said.err
    assert "delete it" in said.err


def test_scheduled_trainings_of_an_empty_home_are_none(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path / "home")
    make_home(Settings(home=terminal.home))
    said = terminal("costs", "--scheduled", "--since", "2026-11-01")
    assert (said.status, said.out.splitlines()[0][:35]) == (0, "No training of a schedule ended. Sc")
    assert json.loads(terminal("costs", "--scheduled", "--json").out) == []


def test_a_damaged_record_does_not_end_a_training(tmp_path: Path) -> None:
    """The record of the launch takes its place."""
    artifacts = artifacts_of(None, tmp_path)
    job = TrainingJob(
        model="churn",
        partition="2026-11-19",
        model_function="lab:model",
        objective="regression",
        hyperparameters={},
        snapshot=str(tmp_path),
        snapshot_digest="1" * 64,
        code_version="1",
        seed=0,
        schema_hash="",
    )
    _write(artifacts, replace(RECORDS[0], model=job.model, fingerprint=job.fingerprint), b"{")
    usage = Usage(artifacts=artifacts, job=job, environment="local", env="", run_id="run", author="ada")
    usage.catch_up([])
    with usage.recording():
        usage.hear(_attempt(time.time(), 0).reading.event())
    found = read_usage(artifacts, job.model, job.fingerprint)
    assert found is not None
    assert len(found.attempts) == 1


def _write(artifacts: Artifacts, record: UsageRecord, content: bytes) -> None:
    with artifacts.create(*usage_file(record.model, record.fingerprint)) as stream:
        stream.write(content)


def _store(artifacts: Artifacts, record: UsageRecord) -> None:
    with artifacts.create(*usage_file(record.model, record.fingerprint)) as stream:
        stream.write(record.to_json().encode())


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (
            "currency: EUR\ngpu_hour:\n  H200: -1\n",
            3,
            r"gpu_hour\.H200: .*greater than or equal to 0; found '-1'",
        ),
        ("core_hour: .nan\n", 1, "core_hour: .*finite number"),
        ("core_hour: .inf\n", 1, "core_hour: .*finite number"),
        ("gib_hour: true\n", 1, "gib_hour: .*valid number"),
        ("gpu_hours: {H200: 1}\n", 1, "gpu_hours: unknown key 'gpu_hours': did you mean 'gpu_hour'"),
        ("\ngpu_hour: [1]\n", 2, "gpu_hour: "),
        ("monthly_budget: {a: 5}\n", 1, "monthly_budget: no training reaches a budget without a price"),
        ("core_hour: [\n", None, "not valid YAML"),
        ("core_hour: 1\n# \x07\n", None, "not valid YAML: unacceptable character"),
        ("currency: 2024-13-45\n", None, "not valid YAML: month must be"),
        ("[" * 3000, None, "not valid YAML: maximum recursion"),
        ("core_hour: 1\ncore_hour: 2\n", 2, "core_hour: is there twice"),
        ("core_hour: 1\nmonthly_budget:\n  a: 5\n  a: 5000\n", 4, r"monthly_budget\.a: is there twice"),
        ("gpu_hour: {H200: 3, h200: 4}\n", 1, r"gpu_hour\.h200: has the words of 'H200'"),
        ("gpu_hour: {'-': 3}\n", 1, r"gpu_hour\.-: no GPU has this name"),
        ("", None, "not a table of prices"),
        ("- 1\n", None, "not a table of prices"),
    ],
)
def test_a_wrong_price_is_named_with_its_line(tmp_path: Path, text: str, line: int | None, says: str) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(text)
    with pytest.raises(PricesRefused, match=says) as refused:
        read_prices(file)
    assert len(str(refused.value).splitlines()) == 1
    assert line is None or str(refused.value).startswith(f"{file}:{line} ")


def test_the_table_of_the_page_is_read(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/costs.md").read_text()
    file = tmp_path / "prices.yaml"
    file.write_text(page.partition("```text\n")[2].partition("```")[0])
    table = read_prices(file)
    assert table is not None
    assert (table.of_gpu("NVIDIA H200"), table.of_gpu("NVIDIA A100-SXM4-80GB"), table.core_hour) == (
        3.5,
        1.8,
        0.04,
    )


def test_a_missing_table_names_its_variable(tmp_path: Path) -> None:
    with pytest.raises(PricesRefused, match=r"ML_ASSETS_PRICES names .*none\.yaml"):
        read_prices(tmp_path / "none.yaml")
    assert read_prices(None) is None


@pytest.mark.parametrize(
    ("limit", "is_spent", "warns"), [(41.0, False, False), (40.0, False, True), (32.0, True, True)]
)
def test_a_budget_warns_at_four_fifths_and_is_spent_at_all(limit: float, is_spent: bool, warns: bool) -> None:
    """Hours before the first of the month do not count, nor do those of another pipeline."""
    midnight = datetime(2026, 11, 1, tzinfo=UTC).timestamp()
    records = [_record("churn", _attempt(midnight - 4 * HOUR, 8)), _record("spam", _attempt(NOON, 5))]
    prices = PriceTable(gpu_hour={"H200": 1.0}, monthly_budget={"churn": limit, "spams": 1.0})
    churn, mistyped = budgets_of(records, prices, date(2026, 11, 30))
    assert (churn.spent, churn.is_spent, bool(churn.says)) == (32.0, is_spent, warns)
    assert (mistyped.model, mistyped.spent) == ("spams", 0.0)
    assert budgets_of(records, PRICES) == budgets_of(records, None) == []


def test_a_spent_budget_refuses_a_launch_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is built; a table or a pipeline without a budget is not asked about."""
    terminal = Terminal(tmp_path / "home")
    make_home(Settings(home=terminal.home))
    artifacts = artifacts_of(None, terminal.home / "artifacts")
    _store(artifacts, _record("store_demand", _attempt(time.time(), 0.5)))
    file = tmp_path / "prices.yaml"
    file.write_text("currency: EUR\ngpu_hour: {H200: 3}\nmonthly_budget: {store_demand: 10}\n")
    monkeypatch.setenv("ML_ASSETS_PRICES", str(file))
    refused = terminal("launch", "store_demand", "2024-01-08")
    assert (refused.status, len(refused.err.splitlines())) == (1, 1)
    assert "trainings of store_demand cost 12.00 of 10.00 EUR" in refused.err
    assert f"raise monthly_budget in {file}" in refused.err
    assert "budget of store_demand in" in terminal("costs").out
    context = ml_assets.open(terminal.home)
    with pytest.raises(BudgetSpent):
        context.launchable("store_demand", "2024-01-08")
    assert context.launchable("datasets/sales", "2024-01-08").keys


def test_a_budget_of_a_mistyped_pipeline_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(tmp_path / "home")
    make_home(Settings(home=terminal.home))
    file = tmp_path / "prices.yaml"
    file.write_text("core_hour: 3\nmonthly_budget: {store_demnd: 10, flight_delay: 5}\n")
    monkeypatch.setenv("ML_ASSETS_PRICES", str(file))
    right, wrong = terminal("costs").out.splitlines()[-2:]
    assert right.endswith("0.00 of 5.00")
    assert "no pipeline is named 'store_demnd'" in wrong
    assert "did you mean 'store_demand'" in wrong
    stated = json.loads(terminal("costs", "--json").out)["budgets"]
    assert [bool(one["wrong"]) for one in stated] == [False, True]


def test_the_command_shows_what_the_records_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours alone, then money, as text and as JSON; a price of -1 ends it with one line."""
    terminal = Terminal(tmp_path / "home")
    make_home(Settings(home=terminal.home))
    assert "No training reserved anything" in terminal("costs").out
    artifacts = artifacts_of(None, tmp_path / "home" / "artifacts")
    half = Goodput(start_up=HOUR, compute=HOUR)
    for record in RECORDS:
        _store(artifacts, replace(record, goodput=half))
    assert terminal("costs", "--by", "status").out.splitlines() == [
        "status     trainings  GPU h  idle h  core h    GiB h",
        "completed          1  16.00    8.00   40.00   400.00",
        "diverged           1  32.00   16.00   80.00   800.00",
        "preempted          1   8.00    4.00   20.00   200.00",
        "all                2  56.00   28.00  140.00  1400.00",
    ]
    file = tmp_path / "prices.yaml"
    file.write_text("currency: EUR\ngpu_hour: {H200: 3.0}\n")
    monkeypatch.setenv("ML_ASSETS_PRICES", str(file))
    said = terminal("costs", "--since", "2026-11-20").out.splitlines()
    assert said[0].split() == [
        "pipeline",
        "trainings",
        "GPU",
        "h",
        "idle",
        "h",
        "core",
        "h",
        "GiB",
        "h",
        "EUR",
    ]
    assert said[1].split()[-1] == "72.00"
    assert said[-1].startswith("The money lacks 32.00 GPU hours of NVIDIA B200")
    document = json.loads(terminal("costs", "--json").out)
    assert document["total"]["spent"]["money"] == pytest.approx(72.0)
    file.write_text("gpu_hour: {H200: -1}\n")
    refused = terminal("costs")
    assert (refused.status, len(refused.err.splitlines())) == (1, 1)
    assert f"{file}:1 gpu_hour.H200" in refused.err
    assert "future" in terminal("costs", "--since", "2999-01-01").err
