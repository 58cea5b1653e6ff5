"""`ml_assets.open()`: what commands do, from Python, with typed results; it writes only if it was opened to write."""

import gc
import os
from pathlib import Path

import pytest

import ml_assets
from ml_assets.context import Context, HomeRefused, LaunchRefused, NotFound, ReadOnly, RunFailed
from ml_assets.model.release.releases import NotPromotable
from ml_assets_tests.cli.conftest import TRAINED_WEEK, WEEK
from ml_assets_tests.cli.terminal import Terminal
from resources.ledger import Demotion, IdentityNeeded, Person, Promotion

MODEL, TABLE = "store_demand", "datasets/sales"


@pytest.fixture(scope="module")
def context(filled_terminal: Terminal) -> Context:
    """Return the context that writes, with a trained and registered model."""
    opened = ml_assets.open(filled_terminal.home, writes=True)
    finished = opened.launch(MODEL, TRAINED_WEEK)
    assert finished.materialized == 4
    return opened


@pytest.fixture
def reader(context: Context) -> Context:
    """Return the context of the same home that reads."""
    return ml_assets.open(context.project.settings.home)


def test_a_plan_says_that_the_training_is_there(context: Context, reader: Context) -> None:
    planned = reader.plan(MODEL, TRAINED_WEEK)
    assert (planned.model, planned.partition) == (MODEL, TRAINED_WEEK)
    assert planned.validation.ok
    assert planned.is_as_trained
    assert planned.to_build == {}
    earlier = reader.plan(MODEL, WEEK)
    assert not earlier.done
    with pytest.raises(LaunchRefused, match=f"is trained for one partition: .* {TRAINED_WEEK}"):
        reader.plan(MODEL, f"{WEEK}..{TRAINED_WEEK}")
    with pytest.raises(NotFound, match=f"did you mean '{MODEL}'"):
        reader.plan("store_demnd", WEEK)


def test_a_version_is_shown_with_its_evaluation_and_card(reader: Context) -> None:
    shown = reader.show(MODEL)
    assert shown.registered.model == MODEL
    assert shown.evaluation.status == "blessed"
    assert shown.evaluation.bundle_digest == shown.registered.bundle_digest
    assert shown.card().to_markdown().startswith("# ")
    with pytest.raises(NotFound, match="no model is named 'nobody'"):
        reader.show("nobody")


def test_a_version_names_its_costs_and_the_parts_of_its_time(
    context: Context, filled_terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = context.show(MODEL).registered
    prices = tmp_path / "prices.yaml"
    prices.write_text("currency: EUR\ncore_hour: 3600.0\n")  # a core second costs 1
    monkeypatch.setenv("ML_ASSETS_PRICES", str(prices))
    opened = ml_assets.open(filled_terminal.home)
    found = opened.training_cost(f"{MODEL}/{version.number}")
    assert (found.model, found.partition, found.states) == (MODEL, TRAINED_WEEK, ["completed"])
    assert found.spent.money == pytest.approx(3600 * found.spent.core_hours)
    assert found.goodput.compute > 0
    assert opened.costs("group").total.spent == found.spent
    run_id = context.project.platform.ledger.models.evaluations(MODEL)[0].run_id
    assert opened.training_cost(run_id) == found
    said = filled_terminal("costs", "--training", f"{MODEL}/{version.number}").out
    assert "each day costs" in said
    assert "lost work" in said
    with pytest.raises(NotFound, match="knows no run"):
        opened.training_cost("nothing")


def test_an_evaluation_is_made_again_without_a_training(context: Context) -> None:
    first = context.show(MODEL).evaluation
    again = context.evaluate(MODEL, TRAINED_WEEK)
    assert again.run_id != first.run_id
    assert again.bundle_digest == first.bundle_digest
    assert (again.status, again.launched_in) == ("blessed", "terminal")
    with pytest.raises(LaunchRefused, match=f"{MODEL} {WEEK} has no finished training"):
        context.evaluate(MODEL, WEEK)


def test_two_homes_in_one_process_stay_apart(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", "/somewhere")
    other = ml_assets.open(tmp_path / "other", writes=True)
    assert other.project.instance.get_runs_count() == 0
    assert other.launch(TABLE, WEEK).materialized == 1
    assert other.project.instance.get_runs_count() == 1
    with pytest.raises(NotFound, match=f"ml-assets launch {MODEL} DATE"):
        other.history(MODEL)
    assert context.history(MODEL).decisions
    assert os.environ["DAGSTER_HOME"] == "/somewhere"


WRITES = {
    "launch": lambda context: context.launch(TABLE, WEEK),
    "promote": lambda context: context.promote(MODEL, by=context.person, reason="no"),
    "approve": lambda context: context.approve(MODEL, 1, by=context.person, reason="no"),
    "reject": lambda context: context.reject(MODEL, 1, by=context.person, reason="no"),
    "rollback": lambda context: context.rollback(MODEL, by=context.person, reason="no"),
    "demote": lambda context: context.demote(MODEL, by=context.person, reason="no"),
    "archive": lambda context: context.archive(MODEL, 1, by=context.person, reason="no"),
    "accept": lambda context: context.accept(TABLE, WEEK, by=context.person, reason="no"),
    "accept_rules": lambda context: context.accept_rules(MODEL, by=context.person, reason="no"),
    "env.create": lambda context: context.env.create("mine"),
    "env.merge": lambda context: context.env.merge("mine", by=context.person),
    "env.drop": lambda context: context.env.drop("mine"),
}


@pytest.mark.parametrize("method", WRITES)
def test_a_context_that_reads_refuses_to_write(reader: Context, method: str) -> None:
    head = reader.project.platform.ledger.models.head()
    with pytest.raises(ReadOnly, match=rf"`{method}` writes: open it with ml_assets.open\(writes=True\)"):
        WRITES[method](reader)
    assert reader.project.platform.ledger.models.head() == head


def test_a_person_promotes_demotes_and_the_history_has_it(context: Context, reader: Context) -> None:
    with pytest.raises(NotPromotable, match="reason"):
        context.promote(MODEL, by=context.person, reason="")
    made = context.promote(MODEL, by=Person.unchecked("bea"), reason="first")
    assert made.promotion.by == Person.unchecked("bea")
    assert (made.before, made.baked_at, made.breaks) == (None, None, [])
    assert reader.in_production(MODEL) == made.promotion
    assert context.promote(MODEL, by=context.person, reason="again").before == made.promotion
    ended = context.demote(MODEL, by=context.person, reason="back")
    assert ended.demotion is not None
    assert reader.in_production(MODEL) is None
    promoted, demoted = reader.history(MODEL).decisions[-2:]
    assert isinstance(promoted, Promotion)
    assert isinstance(demoted, Demotion)
    assert (promoted.reason, demoted.reason) == ("first", "back")
    with pytest.raises(NotFound, match=r"no model is named .nobody.; there are: .*store_demand"):
        reader.history("nobody")


def test_tables_are_seen_through_time(reader: Context, tmp_path: Path) -> None:
    newest, *_ = reader.data.log(table=TABLE, limit=1)
    assert newest.table == TABLE
    assert reader.data.diff(newest.commit, "main", tables=[TABLE]).partitions == ()
    written = reader.data.checkout(f"{MODEL}/1", tmp_path / "window")
    assert written.commit == reader.show(MODEL, 1).evaluation.trained_on.commit
    assert sum(written.partitions.values()) == len(list((tmp_path / "window").rglob("*.parquet")))
    assert reader.data.blame(TABLE, WEEK)[0].rows
    with pytest.raises(NotFound, match="did you mean 'datasets/sales'"):
        reader.data.diff("main", "main", tables=["datasets/sale"])


def test_an_environment_is_made_compared_and_dropped(context: Context, reader: Context) -> None:
    context.env.create("trial")
    assert [one.environment.name for one in reader.env.list()] == ["trial"]
    found = reader.env.diff("trial")
    assert (found.changes.partitions, found.lake.partitions, found.models) == (0, (), [])
    inside = ml_assets.open(context.project.settings.home, env="trial")
    assert inside.project.settings.env == "trial"
    with pytest.raises(HomeRefused, match="environment trial, and environments are seen from main"):
        _ = inside.env
    context.env.drop("trial")
    assert reader.env.list() == []


def test_a_step_that_fails_is_named(context: Context, wrong_sales: dict[str, object]) -> None:
    with pytest.raises(LaunchRefused, match="'sales' is a table: give its folder, too"):
        context.launch("sales", WEEK)
    wrong_sales[WEEK] = None
    with pytest.raises(RunFailed, match=r"^datasets/sales"):
        context.launch(TABLE, WEEK)
    wrong_sales.clear()
    context.launch(TABLE, WEEK)  # other tests share the home


def test_with_accounts_nobody_decides_without_a_proof(terminal: Terminal) -> None:
    assert terminal("accounts", "add", "ada", "--administrator").status == 0
    context = ml_assets.open(terminal.home, writes=True)
    with pytest.raises(IdentityNeeded):
        _ = context.person
    with pytest.raises(IdentityNeeded):  # also where it would change nothing
        context.accept_rules(MODEL, by=Person.unchecked("ada"), reason="mine")


def test_a_home_is_a_folder_whatever_the_process_does_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert ml_assets.open("~/mine", writes=True).project.settings.home == tmp_path / "mine"
    assert ml_assets.open("near", writes=True).project.settings.home == tmp_path / "near"
    (tmp_path / "file").touch()
    for wrong in ("", tmp_path / "file"):
        with pytest.raises(HomeRefused, match="name a folder"):
            ml_assets.open(wrong)


def test_parts_of_a_context_outlive_it(tmp_path: Path) -> None:
    reader = ml_assets.open(tmp_path / "nowhere").project.reader()
    gc.collect()
    assert reader.tables() == []
    assert not (tmp_path / "nowhere").exists()
