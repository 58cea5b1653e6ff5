"""`ml-assets launch` materializes a table or a whole model, and says what came of it and what to type next."""

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import nbformat
import polars as pl
import pytest
from nbclient import NotebookClient

import ml_assets
from ml_assets.components.specs import ScoringSection
from ml_assets.context import NotFound
from ml_assets.data.tables.reader import TableReader
from ml_assets.defs.store_demand import features as store_demand
from ml_assets.foundation.checkout import ROOT
from ml_assets.model.evaluation.spec import EvaluationSpec, Gate
from ml_assets.model.release.releases import registry_of
from ml_assets.model.release.rules import ReleaseSection
from ml_assets.model.steps.search_space import TuningSection
from ml_assets.model.steps.spec import WindowSection
from ml_assets.use.serving.request_log import LoggedRow, RequestLog, read_requests
from ml_assets_tests.cli.conftest import TRAINED_WEEK, WEEK
from ml_assets_tests.cli.end_to_end.test_serve import served
from ml_assets_tests.cli.terminal import Said, Terminal
from ml_assets_tests.components.readings_pipeline import PIPELINE
from ml_assets_tests.resources.test_environment import git
from resources.ledger import NothingToAccept
from resources.platform import Platform
from resources.settings import Settings


@dataclass(frozen=True)
class Later:
    """A source tree whose code moved on, and the home of a version that was trained before."""

    tree: Path
    home: Path

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Type `ml-assets ARGUMENTS` in the tree."""
        return subprocess.run(
            [sys.executable, "-c", "from ml_assets.cli import main; main()", *arguments],
            cwd=self.tree,
            env=os.environ | {"PYTHONPATH": str(self.tree), "ML_ASSETS_HOME": str(self.home)},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture(scope="module")
def trained(filled_terminal: Terminal) -> Said:
    """Output of the command that trained the model."""
    return filled_terminal("launch", "store_demand", TRAINED_WEEK)


def test_a_model_is_trained_evaluated_and_registered(trained: Said) -> None:
    assert trained.status == 0, trained.err
    assert f"store_demand {TRAINED_WEEK}: 4 materializations" in trained.out
    said = {line.split(":")[0].strip(): line for line in trained.out.splitlines()}
    assert "decision blessed, rmse " in said["store_demand/evaluation"]
    assert "version 1" in said["store_demand/registered_model"]
    assert "ml-assets promote store_demand 1 --reason" in trained.out


def test_a_file_launches_what_the_api_takes(trained: Said, filled_terminal: Terminal, tmp_path: Path) -> None:
    """YAML reads the partition as a date."""
    file = tmp_path / "job.yaml"
    file.write_text(f"model: store_demand\npartition: {TRAINED_WEEK}\nconfig: {{memory: 3Gi}}\n")
    said = filled_terminal("launch", "-f", str(file))
    assert said.status == 0, said.err
    assert f"store_demand {TRAINED_WEEK}: 4 materializations" in said.out
    run_id = said.out.rstrip().rpartition("/")[2]
    run = ml_assets.open(filled_terminal.home).project.instance.get_run_by_id(run_id)
    assert run is not None
    assert run.tags["ml_assets/resources"] == '{"memory": "3Gi"}'


def test_what_is_missing_upstream_is_built_first_if_asked(terminal: Terminal) -> None:
    typed = ("launch", "features/sales_features", "2023-02-06")
    refused = terminal(*typed)
    assert refused.status == 1
    assert "with --with-missing" in refused.err
    said = terminal(*typed, "--with-missing")
    assert said.status == 0, said.err
    built = [line.split(":")[0] for line in said.out.splitlines() if " materialization" in line]
    assert built == ["datasets/sales 2023-01-09..2023-02-06", "features/sales_features 2023-02-06"]


def test_an_undecided_model_says_what_was_asked_and_measured(
    filled_terminal: Terminal, tmp_path: Path, redeclared: Callable[..., None]
) -> None:
    redeclared(evaluation=lambda one: one.model_copy(update={"min_blocks": 250}))
    apart = Terminal(shutil.copytree(filled_terminal.home, tmp_path / "home"))
    apart("home", "move")  # another test may have trained in that home
    said = apart("launch", "store_demand", WEEK)
    assert said.status == 0, said.err
    assert "decision undecided" in said.out
    (doubt, *_) = [line for line in said.out.splitlines() if line.startswith("    undecided on all rows: ")]
    assert re.search(r"at least 250 are needed; asked: \w+ .+; would pass: .+", doubt), doubt
    refused = apart("promote", "store_demand", "--reason", "first")
    assert refused.status == 1
    # It is undecided; if another test has registered a version in that home, its rules differ, too.
    assert refused.err.startswith("Error: store_demand 1 (1.0.0) is "), "not: there is no version"


def test_a_rejected_model_says_why_in_lines_below_its_own(
    filled_terminal: Terminal, tmp_path: Path, redeclared: Callable[..., None]
) -> None:
    """The reasons began at the left edge, as if they were about something else."""
    gate = Gate(name="hard to reach", metric="r2", at_least=0.9999)
    redeclared(evaluation=lambda one: one.model_copy(update={"gates": (gate,)}))
    apart = Terminal(shutil.copytree(filled_terminal.home, tmp_path / "home"))
    apart("home", "move")  # another test may have trained in that home
    lines = apart("launch", "store_demand", WEEK).out.splitlines()
    (place,) = [n for n, line in enumerate(lines) if "registered_model: Not registered: " in line]
    assert lines[place + 1].startswith("    “hard to reach” on all rows: ")


def test_the_author_of_a_launch_in_a_terminal_is_the_person(trained: Said, filled_terminal: Terminal) -> None:
    """A run in Dagster's pages has only the name of its process."""
    log = Platform(Settings.model_validate({"home": filled_terminal.home})).ledger.models
    assert {one.launched_in for one in log.evaluations("store_demand")} == {"terminal"}


@pytest.fixture(scope="module")
def later(trained: Said, filled_terminal: Terminal, tmp_path_factory: pytest.TempPathFactory) -> Later:
    """Return a clone of this repository in which somebody committed another list of columns since the training."""
    tree = tmp_path_factory.mktemp("later")
    git(ROOT, "clone", "--quiet", "--shared", str(ROOT), str(tree))
    file = tree / "ml_assets/defs/store_demand/defs.yaml"
    before, after = "categorical: [store, product]", "categorical: [product]"
    assert file.read_text().count(before) == 1
    file.write_text(file.read_text().replace(before, after))
    git(
        tree, "-c", "user.name=ada", "-c", "user.email=ada@example.org", "commit", "-qam", "without the store"
    )
    return Later(tree, filled_terminal.home)


@pytest.mark.nightly
def test_the_recorded_code_reproduces_a_version(later: Later) -> None:
    """Without it, `reproduce` names the other commit. The repository stays as it is."""
    before = git(later.tree, "status", "--porcelain"), set((later.tree / ".git").rglob("*"))
    refused = later("reproduce", "store_demand/1")
    assert refused.returncode == 1
    then, now = (git(at, "rev-parse", "HEAD").strip()[:12] for at in (ROOT, later.tree))
    assert f"its code was commit {then}, here is {now}" in refused.stderr
    assert "--code trains with the recorded code" in refused.stderr
    said = later("reproduce", "store_demand/1", "--code", "--json")
    assert said.returncode == 0, said.stderr
    found = json.loads(said.stdout.splitlines()[-1])
    assert (found["level"], found["expected"]) == ("weights", "weights")
    equal = {one["what"] for one in found["compared"] if one["recorded"] == one["again"]}
    assert {"snapshot", "weights", "bundle", "holdout rmse"} <= equal
    assert before == (git(later.tree, "status", "--porcelain"), set((later.tree / ".git").rglob("*")))


@pytest.mark.nightly
def test_recorded_code_and_packages_reproduce_a_version(later: Later) -> None:
    """The packages are installed from this project's lock; the second time they are there."""
    for _ in range(2):
        said = later("reproduce", "store_demand/1", "--code", "--environment")
        assert said.returncode == 0, said.stderr
        assert "level that held with 2 workers: weights; expected: weights" in said.stdout
        assert f"packages: {later.home}/cache/environments/" in said.stderr


def test_a_model_card_says_what_was_trained_and_measured(
    filled_terminal: Terminal, trained: Said, tmp_path: Path
) -> None:
    card = filled_terminal("card", "store_demand")
    assert card.status == 0, card.err
    lines = card.out.splitlines()
    assert lines[0] == "# Model card: store_demand"
    assert lines[2].startswith(f"version 1 (1.0.0), staging · partition {TRAINED_WEEK} · evaluation ")
    for said in (
        "Units per store and product of the coming week.",
        "The label is the column units; the objective is regression.",
        "| holdout    | 2023-11-20 to 2024-01-08 |   576 |",
        "| beats the baseline ",
        "product=milk",
        "* Measured on 2023-11-20 to 2024-01-08.",
        "* Hyperparameters (declared): hidden 32, embedding 4",
    ):
        assert said in card.out
    assert all(
        f"| {what} " in card.out for what in ("lake commit", "code of the model", "code of the features")
    )
    file = tmp_path / "card.html"
    assert f"wrote {file}" in filled_terminal("card", "store_demand", "1", "--html", str(file)).out
    assert "<h1>Model card: store_demand</h1>" in file.read_text()


def test_a_version_differs_from_itself_in_nothing(
    filled_terminal: Terminal, trained: Said, tmp_path: Path
) -> None:
    file = tmp_path / "diff.html"
    found = filled_terminal("diff", "store_demand", "1", "1")
    assert found.status == 0, found.err
    for said in (
        "**No metric moved more than by chance, on the holdout of version 1 (1.0.0), 2023-11-20 to 2024-01-08.**",
        "| RMSE   |  576 |",
        "product=milk",
        "* 48 partitions in both windows have the same content, and no other changed.",
        "No setting changed.",
        "Both versions have the same weights.",
    ):
        assert said in found.out
    filled_terminal("diff", "store_demand", "1", "1", "--html", str(file))
    assert "<h1>store_demand: version 1 (1.0.0) to version 1 (1.0.0)</h1>" in file.read_text()
    refused = filled_terminal("diff", "store_demand", "1", "7")
    assert (refused.status, refused.out) == (1, "")
    assert "store_demand has no version 7; it has 1 (1.0.0)" in refused.err


def test_a_report_of_an_earlier_form_is_named_with_the_remedy(
    filled_terminal: Terminal, trained: Said
) -> None:
    reports = (filled_terminal.home / "artifacts" / "reports" / "store_demand").rglob("evaluation.json")
    stored = {file: file.read_text() for file in reports}
    for file, text in stored.items():
        file.write_text(text.replace('"title":', '"former_title":', 1))
    try:
        card, found = (
            filled_terminal("card", "store_demand"),
            filled_terminal("diff", "store_demand", "1", "1"),
        )
    finally:
        for file, text in stored.items():
            file.write_text(text)
    assert card.status == 1
    assert "has an earlier form or is damaged (its SHA-256" in card.err
    assert f"materialize {TRAINED_WEEK} of the model again, which evaluates it anew" in card.err
    assert found.status == 0, found.err
    assert (
        "Study and initial weights of version 1 (1.0.0) are not known: the report of evaluation " in found.out
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("store_demand", "7"), "store_demand has no version 7; it has 1 (1.0.0)"),
        (
            ("store_deman",),
            "no model is named 'store_deman': did you mean 'store_demand'?",
        ),
        (("flight_delay",), "flight_delay has no registered version yet. To make one: ml-assets launch"),
    ],
)
def test_cards_of_versions_that_do_not_exist_are_refused(
    filled_terminal: Terminal, trained: Said, arguments: tuple[str, ...], said: str
) -> None:
    refused = filled_terminal("card", *arguments)
    assert refused.status == 1
    assert said in refused.err


def test_the_plan_knows_that_it_was_trained(filled_terminal: Terminal, trained: Said) -> None:
    assert "It was trained and evaluated before" in filled_terminal("plan", "store_demand", TRAINED_WEEK).out


@pytest.mark.parametrize(
    ("column", "change", "said", "trains"),
    [
        ("predicted_at", pl.col("predicted_at").dt.offset_by("-1h"), "only the evaluation", False),
        ("price", pl.col("price") + 0.25, "the training", True),
    ],
)  # fmt: skip
def test_the_plan_says_which_step_reads_what_changed(
    filled_terminal: Terminal,
    trained: Said,
    monkeypatch: pytest.MonkeyPatch,
    column: str,
    change: pl.Expr,
    said: str,
    trains: bool,
) -> None:
    table, week, made = "features/sales_features", "2023-10-02", store_demand.sales_features

    @functools.wraps(made)  # the same code: it is what the function reads elsewhere that changed
    def sales_features(*arguments: Any) -> pl.LazyFrame:
        is_it = pl.col("partition_date").cast(pl.String) == week
        return made(*arguments).with_columns(
            pl.when(is_it).then(change).otherwise(pl.col(column)).alias(column)
        )

    with monkeypatch.context() as patched:
        patched.setattr(store_demand, "sales_features", sales_features)
        assert filled_terminal("launch", table, week).status == 0
    plan = filled_terminal("plan", "store_demand", TRAINED_WEEK).out
    assert (
        f"  changed   {table} {week}: {column} changed since the last training; {said} reads them\n" in plan
    )
    assert ("no value that its training reads changed since. A launch reuses" in plan) == (not trains)
    assert (
        "Values that its training reads changed since it was trained, so it would train again." in plan
    ) == trains
    assert filled_terminal("launch", table, week).status == 0
    assert "changed" not in filled_terminal("plan", "store_demand", TRAINED_WEEK).out.replace(
        "reads changed", ""
    )


@pytest.mark.parametrize(
    "change", [{"seed": 3}, {"window": WindowSection(train=39, validation=4, holdout=4)}]
)
def test_the_plan_says_that_other_settings_train_anew(
    filled_terminal: Terminal, trained: Said, redeclared: Callable[..., None], change: dict[str, Any]
) -> None:
    redeclared(**change)
    said = filled_terminal("plan", "store_demand", TRAINED_WEEK).out
    assert "reuses the finished" not in said
    assert "Its settings, code or columns changed since it was trained" in said


def test_a_declared_approval_is_needed_from_somebody_else(
    filled_terminal: Terminal, trained: Said, redeclared: Callable[..., None]
) -> None:
    """`ada` ran the evaluation."""
    reviewing = ("approve", "store_demand", "1", "--reason", "read the report")
    assert "store_demand has no `approval` under `release`" in filled_terminal(*reviewing).err
    accepting = ("rules", "accept", "store_demand", "--reason", "two persons decide")
    redeclared(release=ReleaseSection.model_validate({"approval": {}}))
    assert filled_terminal(*accepting).status == 0
    refused = filled_terminal("promote", "store_demand", "1", "--reason", "better").err
    assert "release.approval in defs.yaml asks for an approval of its evaluation" in refused
    assert "ml-assets approve store_demand 1 --reason '…'" in refused
    assert "excludes the author, and ada ran its evaluation" in filled_terminal(*reviewing).err
    redeclared(release=ReleaseSection.model_validate({"approval": {"not_by": ["promoter"]}}))
    assert "differs from rules" in filled_terminal(*reviewing).err
    assert "excludes the author, and ada ran its evaluation" in filled_terminal(*accepting).err
    assert filled_terminal.named("lead")(*accepting).status == 0
    approved = filled_terminal(*reviewing)
    assert approved.out.startswith("store_demand version 1 is approved since ")
    assert "Nobody checked that you are ada: " in approved.out
    again = filled_terminal(*reviewing[:-1], "me too").out
    assert again.startswith("Nothing changed: store_demand version 1 was approved before")
    refused = filled_terminal("promote", "store_demand", "1", "--reason", "better").err
    assert "excludes the promoter: somebody else has to promote it" in refused
    assert (
        "approved    version 1 (1.0.0), by ada: read the report"
        in filled_terminal("history", "store_demand").out
    )
    redeclared(release=ReleaseSection())
    assert filled_terminal.named("lead")(*accepting).status == 0


def test_gates_of_a_transition_stop_a_promotion_and_not_the_registration(
    filled_terminal: Terminal, trained: Said, redeclared: Callable[..., None]
) -> None:
    """Changed gates are in force with `rules accept`, and decide with the next evaluation."""

    def declared(limit: float) -> None:
        gate = {
            "name": "exact on each product",
            "metric": "rmse",
            "at_most": limit,
            "slice": {"product": "*"},
        }
        redeclared(release=ReleaseSection.model_validate({"gates": {"production": [gate]}}))
        said = filled_terminal("rules", "accept", "store_demand", "--reason", "for production")
        assert said.status == 0, said.err

    promoting = ("promote", "store_demand", "--reason", "better than guessing")
    launching = ("launch", "store_demand", TRAINED_WEEK)
    declared(0.01)
    refused = filled_terminal(*promoting)
    assert "release.gates.production in defs.yaml, which were declared later" in refused.err
    assert f"ml-assets launch store_demand {TRAINED_WEEK}" in refused.err
    launched = filled_terminal(*launching)
    assert launched.status == 0, launched.err
    assert "decision blessed" in launched.out
    refused = filled_terminal(*promoting)
    assert refused.status == 1
    assert (
        "does not pass release.gates.production in defs.yaml. “exact on each product” (product="
        in refused.err
    )
    assert "; would pass: " in refused.err
    shown = Platform(Settings(home=filled_terminal.home)).ledger.models.evaluations("store_demand")[-1].report
    assert "Rules before production" in Path(shown.removeprefix("file://")).read_text()
    declared(1000)
    assert "which were declared later" in filled_terminal(*promoting).err
    redeclared(release=ReleaseSection())
    assert filled_terminal("rules", "accept", "store_demand", "--reason", "no more gates").status == 0


def test_changed_gates_are_in_force_only_with_a_decision(
    filled_terminal: Terminal, trained: Said, redeclared: Callable[..., None]
) -> None:
    """Otherwise an edited file promotes a version past a gate that it never met."""
    promoting = ("promote", "store_demand", "--reason", "better than guessing")
    accepting = ("rules", "accept", "store_demand", "--reason", "a higher bar")
    before = filled_terminal("history", "store_demand").out
    never = Gate(name="exact", metric="rmse", at_most=1e-9)
    redeclared(evaluation=lambda given: given.model_copy(update={"gates": (*given.gates, never)}))
    refused = filled_terminal(*promoting)
    assert refused.status == 1
    assert "`evaluation` in this defs.yaml differs from rules" in refused.err
    assert filled_terminal("history", "store_demand").out == before
    accepted = filled_terminal(*accepting)
    assert 'evaluation.gates "exact": not given → metric rmse at_most 1e-09' in accepted.out, accepted.err
    refused = filled_terminal(*promoting).err
    assert (
        "was decided by other gates than those in force. Evaluate it again, which reuses the training"
        in refused
    )
    assert f"ml-assets launch store_demand {TRAINED_WEEK}" in refused
    redeclared()
    assert filled_terminal(*accepting).status == 0


def test_the_plan_says_that_a_metric_cannot_be_imported(
    terminal: Terminal, redeclared: Callable[..., None]
) -> None:
    function = "ml_assets_tests.components.unimportable_metric.cost"
    metric = {"function": function, "better": "lower"}
    evaluation = PIPELINE["evaluation"] | {
        "slices": [],
        "baseline": {"groups": ["store"]},
        "metrics": [metric],
    }
    redeclared(evaluation=EvaluationSpec.model_validate(evaluation))
    planned = terminal("plan", "store_demand", TRAINED_WEEK)
    assert planned.status == 0, planned.err
    said = planned.out
    assert (
        "It would refuse: store_demand would fail after its training: evaluation.metrics[0].function cannot import "
        f"'{function}': RuntimeError: only the step" in said
    )


def test_promoting_names_author_and_reason_and_the_log_keeps_them(
    filled_terminal: Terminal, trained: Said, wrong_sales: dict[str, pl.Expr]
) -> None:
    """A week that it was trained on was rejected since: that needs a word of its own, and stands in the log."""
    wrong_sales["2023-10-02"] = pl.lit(-1, pl.Int32).alias("units")
    assert filled_terminal("launch", "datasets/sales", "2023-10-02").status == 1
    promoting = ("promote", "store_demand", "--reason", "better than guessing")
    refused = filled_terminal(*promoting)
    assert refused.status == 1
    assert (
        "because of its training inputs: datasets/sales 2023-10-02 is rejected: quarantine_limit: 72 of 72 rows"
        in refused.err
    )
    assert "ml-assets promote store_demand 1 --despite-inputs --reason" in refused.err
    promoted = filled_terminal(*promoting, "--despite-inputs")
    assert promoted.status == 0
    assert "store_demand version 1 is in production" in promoted.out
    assert "models:/store_demand@production" in promoted.out
    log = filled_terminal("history", "store_demand").out
    assert "registered  1.0.0, bundle " in log
    assert "promoted    version 1 (1.0.0), by ada: better than guessing" in log
    assert "    despite datasets/sales 2023-10-02 is rejected: quarantine_limit: 72 of 72 rows" in log
    assert "ok    production       store_demand 1" in filled_terminal("doctor").out, (
        "a person's word covers that week"
    )

    wrong_sales["2023-10-09"] = pl.lit(-1, pl.Int32).alias("units")
    assert filled_terminal("launch", "datasets/sales", "2023-10-09").status == 1
    (failed,) = [
        line for line in filled_terminal("doctor").out.splitlines() if line.startswith("FAIL  production")
    ]
    assert (
        "store_demand version 1 is in production, and among its training inputs datasets/sales 2023-10-09 is"
        in failed
    )
    assert "2023-10-02" not in failed
    wrong_sales.clear()
    assert filled_terminal("launch", "datasets/sales", "2023-10-02..2023-10-09").status == 0


@pytest.fixture
def in_production(filled_terminal: Terminal, trained: Said) -> Terminal:
    """Return the terminal with version 1 in production, also if a week behind it was rejected."""
    said = filled_terminal("promote", "store_demand", "1", "--despite-inputs", "--reason", "for the notebook")
    assert said.status == 0, said.err
    return filled_terminal


def test_what_predictions_lack_is_built_first_if_asked(
    in_production: Terminal, tmp_path: Path, redeclared: Callable[..., None]
) -> None:
    """The refusal of predictions named the option, which refused them."""
    redeclared(scoring=ScoringSection())
    apart = Terminal(shutil.copytree(in_production.home, tmp_path / "home"))
    apart("home", "move")
    said = apart("launch", "store_demand/predictions", "2024-05-06", "--with-missing")
    assert said.status == 0, said.err
    assert [line.split(":")[0] for line in said.out.splitlines() if " materialization" in line] == [
        "datasets/sales 2024-04-08..2024-05-06",
        "features/sales_features 2024-05-06",
        "store_demand/predictions 2024-05-06",
    ]


def test_the_notebook_of_the_docs_runs_and_writes_nothing(in_production: Terminal) -> None:
    notebook = nbformat.read(ROOT / "docs" / "notebooks" / "look-at-a-model.ipynb", as_version=4)
    (parameters,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ())]
    parameters.source = (
        f'MODEL, PARTITION, TABLE = "store_demand", "{TRAINED_WEEK}", "sales_features"\n'
        'ENTITY, TIME = {"store": "store_03", "product": "milk"}, datetime(2024, 1, 3, 12, tzinfo=UTC)'
    )
    before = _held(in_production)

    NotebookClient(notebook, timeout=None, resources={"metadata": {"path": str(ROOT)}}).execute(
        env={**os.environ, "ML_ASSETS_HOME": str(in_production.home)}
    )

    shown = [str(output.get("data")) for cell in notebook.cells for output in cell.get("outputs", ())]
    assert sum("array(" in one for one in shown) == 1  # the predictions of the holdout's first rows
    assert "milk" in shown[-1]
    assert _held(in_production) == before


def test_a_notebook_reads_features_as_they_were_known(filled_terminal: Terminal) -> None:
    view = ml_assets.open(filled_terminal.home).features("sales_features")
    entity = {"store": "store_03", "product": "milk"}
    monday = view.reader.scan(view.table, [WEEK]).filter(store="store_03", product="milk").collect()
    (predicted_at,) = monday["predicted_at"]
    at, before = view.at(entity, predicted_at), view.at(entity, predicted_at - timedelta(microseconds=1))
    assert at["partition_date"].to_list() == [date.fromisoformat(WEEK)]
    assert before["partition_date"].to_list() == [date.fromisoformat(WEEK) - timedelta(weeks=1)]
    assert not {"units", "label_known_at"} & set(at.columns)
    assert view.at({"store": "store_99"}, predicted_at).is_empty()
    assert view.at({"store": "store_03"}, predicted_at).height == 6
    with pytest.raises(NotFound, match="has no column 'shop'"):
        view.at({"shop": "store_03"}, predicted_at)
    with pytest.raises(ValueError, match="has no time zone"):
        view.at(entity, predicted_at.replace(tzinfo=None))


def test_a_notebook_is_told_what_does_not_exist(filled_terminal: Terminal, trained: Said) -> None:
    context = ml_assets.open(filled_terminal.home)
    with pytest.raises(NotFound, match=f"never evaluated on 2023-01-02; it was on {TRAINED_WEEK}"):
        context.open_snapshot("store_demand/2023-01-02")
    with pytest.raises(NotFound, match="is no commit that keeps a snapshot"):
        context.open_snapshot("f" * 64)
    with pytest.raises(NotFound, match="'@latest' is no alias"):
        context.load_model("store_demand@latest")
    with pytest.raises(NotFound, match="no version of store_demand is the canary"):
        context.load_model("store_demand@canary")
    with pytest.raises(NotFound, match="did you mean 'sales_features'"):
        context.features("sale_features")
    same = context.open_snapshot(f"store_demand/{TRAINED_WEEK}")
    assert same.rows("train").height > same.rows("holdout").height > 0


def _held(terminal: Terminal) -> tuple[dict[str, str], str]:
    """Return the branches of the lake with their commits, and the head of the ledger's chain."""
    platform = Platform(Settings.model_validate({"home": terminal.home}))
    return dict(platform.lake.branches("")), str(platform.ledger.models.verify(None))


def test_demoting_leaves_nothing_in_production_and_stands_in_the_log(
    filled_terminal: Terminal, trained: Said
) -> None:
    assert filled_terminal("demote", "store_demand").status == 2
    assert filled_terminal("promote", "store_demand", "1", "--reason", "the first").status == 0
    demoted = filled_terminal("demote", "store_demand", "--reason", "prices were wrong")
    assert demoted.out.startswith("store_demand version 1 is no longer in production. No version is.")
    log = filled_terminal("history", "store_demand").out
    assert "demoted     version 1 (1.0.0), by ada: prices were wrong" in log
    now = datetime.now(UTC).isoformat()
    at = filled_terminal("history", "store_demand", "--at", now).out
    assert "no version was in production, since " in at
    assert "    demoted version 1 (1.0.0), by ada: prices were wrong" in at
    assert "is not a time" in filled_terminal("history", "store_demand", "--at", "noon").err
    assert "is in the future" in filled_terminal("history", "store_demand", "--at", "9999-01-01").err
    forged = filled_terminal(
        "promote", "store_demand", "1", "--reason", "fine\nTIME  approved  version 1, by bob"
    )
    assert (forged.status, "\nTIME" in forged.err) == (1, False)
    assert "has a character that does not print, '\\n', at place 5" in forged.err
    assert "nothing to roll back to" in filled_terminal("rollback", "store_demand", "--reason", "oh").err
    assert "    on evaluation " in log
    assert (
        "no version of store_demand is in production"
        in filled_terminal("demote", "store_demand", "--reason", "again").err
    )
    assert filled_terminal("promote", "store_demand", "1", "--reason", "prices were right").status == 0
    assert "Nothing changed" in filled_terminal("promote", "store_demand", "1", "--reason", "twice").out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("store_demand",), "add --reason"),
        (("store_demand", "7", "--reason", "why not"), "has no version 7; it has 1 (1.0.0)"),
        (
            ("store_deman", "--reason", "why not"),
            "no model is named 'store_deman': did you mean 'store_demand'?",
        ),
    ],
)
def test_promotions_that_cannot_be_are_refused_in_a_sentence(
    filled_terminal: Terminal, trained: Said, arguments: tuple[str, ...], said: str
) -> None:
    refused = filled_terminal("promote", *arguments)
    assert refused.status == 1
    assert said in refused.err
    assert "Traceback" not in refused.err


@pytest.mark.parametrize(
    ("target", "partitions", "said"),
    [
        ("datasets/sale", WEEK, "no model or table is named 'datasets/sale': did you mean 'datasets/sales'?"),
        ("abc", WEEK, "there are: datasets/airlines, "),
        (
            "store_demand/evaluation",
            WEEK,
            f"with the model's other assets: ml-assets launch store_demand {WEEK}",
        ),
        (
            "sales",
            WEEK,
            "'sales' is a table: give its folder, too: ml-assets launch datasets/sales PARTITIONS",
        ),
        ("store_deman", WEEK, "did you mean 'store_demand'?"),
        ("datasets/sales", "2024-01-02", "the partition before it is '2024-01-01'"),
        ("datasets/sales", f"{WEEK}..2023-12-25", "ends before it begins"),
        ("datasets/sales", "", "name a partition, or a range FIRST..LAST"),
        ("datasets/airports", WEEK, f"has no partitions: leave out '{WEEK}'"),
        (
            "store_demand",
            f"{WEEK}..2024-01-08",
            "is trained for one partition: ml-assets launch store_demand 2024-01-08",
        ),
    ],
)
def test_what_does_not_exist_is_refused_with_what_does(
    terminal: Terminal, target: str, partitions: str, said: str
) -> None:
    refused = terminal("launch", target, *([partitions] if partitions else []))
    assert refused.status == 1
    assert said in refused.err
    assert "Traceback" not in refused.err


def test_a_refused_run_is_one_sentence_and_status_1(terminal: Terminal) -> None:
    refused = terminal("launch", "features/sales_features", "2023-02-06")
    assert refused.status == 1
    assert refused.err.startswith("Error: features/sales_features refuses to build")
    assert "datasets/sales 2023-01-09 is missing" in refused.err
    assert "Traceback" not in refused.err


def test_a_rejected_week_is_accepted_with_a_reason_and_stands_on_main(
    terminal: Terminal, wrong_sales: dict[str, pl.Expr]
) -> None:
    wrong_sales["2023-01-02"] = pl.lit(-1, pl.Int32).alias("units")
    rejected = terminal("launch", "datasets/sales", "2023-01-02")
    assert rejected.status == 1
    assert "ml-assets accept datasets/sales 2023-01-02 --reason" in rejected.err
    assert terminal("accept", "datasets/sales", "2023-01-02").status == 2

    accepted = terminal("accept", "datasets/sales", "2023-01-02", "--reason", "returns, not sales")
    assert accepted.out.startswith("datasets/sales 2023-01-02 is accepted by ada: returns, not sales")
    again = terminal("launch", "datasets/sales", "2023-01-02")
    assert again.status == 0, again.err

    unseen = terminal("accept", "datasets/sales", "2023-01-09", "--reason", "unseen")
    assert unseen.status == 1
    assert "Traceback" not in unseen.err


def test_whoever_asks_for_the_traceback_gets_it(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ML_ASSETS_TRACEBACK", "1")
    with pytest.raises(NothingToAccept):
        terminal("accept", "datasets/sales", "2023-01-09", "--reason", "unseen")


def test_skew_names_what_was_served_unlike_the_table(filled_terminal: Terminal, trained: Said) -> None:
    platform = Platform(Settings.model_validate({"home": filled_terminal.home}))
    nothing = filled_terminal("skew", "store_demand", TRAINED_WEEK)
    assert (nothing.status, "nothing to compare: no request for store_demand" in nothing.err) == (1, True)
    version = registry_of(platform).version("store_demand", 1)
    reader = TableReader.at(platform.lake)

    def log(request: str, **changed: Any) -> None:
        row = reader.scan("features/sales_features", [TRAINED_WEEK]).collect().row(0, named=True)
        sent = json.dumps(row | changed, default=lambda one: one.isoformat()).encode()
        with RequestLog(platform.artifacts) as requests:
            answered = LoggedRow(
                request_id=request,
                place=0,
                at_us=int(datetime.fromisoformat(f"{TRAINED_WEEK}T12:00:00+00:00").timestamp() * 1e6),
                model="store_demand",
                version=1,
                bundle_digest=version.bundle_digest,
                role="production",
                assigned="production",
                request_rows=1,
                entity=None,
                row=sent,
                prediction=[1.0],
                latency_us=900,
            )
            requests.add([answered])

    log("same")
    said = filled_terminal("skew", "store_demand", TRAINED_WEEK)
    assert (said.status, said.out) == (0, "Version 1: 1 row compared, 0 inputs differ.\n"), said.err
    log("other", price=123.0)
    said = filled_terminal("skew", "store_demand", TRAINED_WEEK)
    assert said.status == 1
    assert "Version 1: 2 rows compared, 1 input differs." in said.out
    assert "  price: 1 row differs; 123.0 was served, the table has " in said.out


def test_skew_compares_what_the_server_looked_up(filled_terminal: Terminal, trained: Said) -> None:
    """A request names store and product alone. Its log is moved to the week of the features."""
    for command in (
        ("launch", "features/sales_features/online", TRAINED_WEEK),
        ("promote", "store_demand", "--reason", "first model"),
    ):
        said = filled_terminal(*command)
        assert said.status == 0, said.err
    sent = {"store": "store_04", "product": "soap"}
    with served(filled_terminal.home, "--online", "--log-keep-days", "0") as (client, server):
        answer = client.post("/models/store_demand/predict", json=sent).json()
        server.send_signal(signal.SIGTERM)
        assert server.wait(200) == 0
    assert answer["online"]["features_at"].startswith(TRAINED_WEEK)
    artifacts = Platform(Settings.model_validate({"home": filled_terminal.home})).artifacts
    [row] = read_requests(artifacts, "store_demand", datetime.now(UTC).date()).rows(named=True)
    known = {one.name: row[one.name] for one in fields(LoggedRow) if one.name in row}
    moved = int(datetime.fromisoformat(f"{TRAINED_WEEK}T13:00:00+00:00").timestamp() * 1e6)
    with RequestLog(artifacts) as requests:
        requests.add([LoggedRow(**{**known, "at_us": moved, "row": row["row"].encode()})])
    said = filled_terminal("skew", "store_demand", TRAINED_WEEK)
    assert "Version 1: 3 rows compared, 1 input differs." in said.out, "that of the test above"
    assert filled_terminal("demote", "store_demand", "--reason", "measured").status == 0


def _search(terminal: Terminal, redeclared: Callable[..., None], epochs: int) -> str:
    """Run a study of one trial; return the first digits of its result's digest."""
    space = {"training": {"epochs": {"kind": "categorical", "choices": [epochs]}}}
    redeclared(tuning=TuningSection.model_validate({"space": space, "sampler": "grid", "trials": 1}))
    searched = terminal("launch", "store_demand/hyperparameters")
    assert searched.status == 0, searched.err
    results = terminal.home / "artifacts" / "studies" / "local" / "store_demand" / "results.json"
    return json.loads(results.read_text())[-1]["name"]


def test_the_plan_names_both_studies_after_a_new_result(
    filled_terminal: Terminal, trained: Said, redeclared: Callable[..., None]
) -> None:
    """The last test of this module: it trains the model again."""
    first = _search(filled_terminal, redeclared, 1)
    again = "and those of now from study {}, so it would train again."
    said = filled_terminal("plan", "store_demand", TRAINED_WEEK).out
    assert f"Its hyperparameters are from the declaration, {again.format(first)}" in said
    assert filled_terminal("launch", "store_demand", TRAINED_WEEK).status == 0
    assert "It was trained and evaluated before" in filled_terminal("plan", "store_demand", TRAINED_WEEK).out
    second = _search(filled_terminal, redeclared, 2)
    said = filled_terminal("plan", "store_demand", TRAINED_WEEK).out
    assert f"Its hyperparameters are from study {first}, {again.format(second)}" in said
    assert f"  values    study {second} of {TRAINED_WEEK}: trial 0 has the lowest validation loss" in said
