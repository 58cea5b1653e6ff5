"""`ml-assets plan` says what a run would do or lack, and changes nothing."""

import gc
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ml_assets.components import Dataset, FeatureTable
from ml_assets.data.validation.contract import Contract
from ml_assets.data.validation.volume import VolumeRule
from ml_assets.extras.tuning.chosen import store_result
from ml_assets.foundation.days import Days
from ml_assets.model.steps.search_space import TuningSection
from ml_assets.model.steps.spec import WindowSection
from ml_assets.model.steps.study_result import StudyResult, TrialOutcome
from ml_assets_tests.cli.conftest import WEEK
from ml_assets_tests.cli.terminal import Terminal
from resources.ledger import TrainedOn
from resources.platform import Platform
from resources.settings import Settings

SALES, FEATURES = "datasets/sales", "features/sales_features"


def test_an_empty_home_lacks_everything_down_to_the_source(terminal: Terminal) -> None:
    said = terminal("plan", "store_demand", WEEK)
    assert said.status == 0
    assert f"reads 48 partitions of {FEATURES}, 2023-02-06 to {WEEK}" in said.out
    lines = said.out.splitlines()
    assert f"  missing   {SALES}: 2023-01-09..{WEEK} (52)" in lines
    assert lines.index(f"  missing   {SALES}: 2023-01-09..{WEEK} (52)") < lines.index(
        f"  missing   {FEATURES}: 2023-02-06..{WEEK} (48)"
    )
    assert "It would refuse" in said.out
    assert "build_missing_upstream" in said.out


def test_a_deprecated_table_is_named_with_its_advice(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Dataset.load.__func__

    def edited(cls: type[Dataset], spec: Any, context: Any) -> Dataset:
        is_sales = spec.name == "sales"
        changed = spec.model_copy(update={"deprecated": "read datasets/till instead"}) if is_sales else spec
        return load(cls, changed, context)

    monkeypatch.setattr(Dataset, "load", classmethod(edited))
    said = terminal("plan", "store_demand", WEEK)
    assert f"  deprecated {SALES}: read datasets/till instead" in said.out.splitlines()


def test_without_a_partition_the_newest_is_planned(filled_terminal: Terminal) -> None:
    said = filled_terminal("plan", "store_demand").out
    newest = said.split()[1]
    assert said == filled_terminal("plan", "store_demand", newest).out
    assert newest > WEEK


def test_planning_in_an_empty_home_makes_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert Terminal(home)("plan", "store_demand", WEEK).status == 0
    assert not home.exists()


def test_planning_in_a_home_at_work_changes_no_file(filled_terminal: Terminal) -> None:
    def files() -> dict[str, int]:
        # SQLite makes and removes -wal and -shm whenever a database is opened; locks hold nothing.
        passing = ("-wal", "-shm", "-journal", ".lock")
        found = [path for path in filled_terminal.home.rglob("*") if not path.name.endswith(passing)]
        return {str(path): path.stat().st_mtime_ns for path in found if path.is_file()}

    filled_terminal("plan", "store_demand", WEEK)
    gc.collect()  # SQLite writes its file when the last connection of the commands before is closed
    before = files()
    assert filled_terminal("plan", "store_demand", WEEK).status == 0
    assert files() == before


def test_a_partition_that_is_too_early_is_told_the_first_possible_one(
    filled_terminal: Terminal, redeclared: Callable[..., None]
) -> None:
    redeclared(window=WindowSection(train=47, validation=4, holdout=4))
    early = filled_terminal("plan", "store_demand", WEEK).out
    assert early.endswith(
        "2024-02-12 is the first partition with a complete window: ml-assets plan store_demand 2024-02-12\n"
    )
    assert (
        "It would refuse: the window needs 55 partitions and has 54."
        in filled_terminal("plan", "store_demand", "2024-02-05").out
    )
    assert "the window needs" not in filled_terminal("plan", "store_demand", "2024-02-12").out
    redeclared(window=WindowSection(train=200, validation=4, holdout=4))
    assert (
        f"{FEATURES} has fewer partitions: choose a shorter window."
        in filled_terminal("plan", "store_demand", WEEK).out
    )


def test_a_whole_window_would_run_the_five_steps(filled_terminal: Terminal) -> None:
    said = filled_terminal("plan", "store_demand", WEEK)
    assert "missing" not in said.out
    assert (
        "It would run validate_inputs → snapshot → train (2 processes, up to 30 epochs) → evaluate"
        in said.out
    )
    assert f"ml-assets launch store_demand {WEEK}" in said.out


def test_a_later_week_lacks_what_came_since(filled_terminal: Terminal) -> None:
    said = filled_terminal("plan", "store_demand", "2024-01-22")
    assert f"  missing   {SALES}: 2024-01-15..2024-01-22 (2)" in said.out
    assert f"  missing   {FEATURES}: 2024-01-15..2024-01-22 (2)" in said.out


def test_a_week_rejected_at_its_source_is_named_as_rejected_not_as_missing(
    filled_terminal: Terminal, wrong_sales: dict[str, pl.Expr]
) -> None:
    wrong_sales["2024-01-15"] = -pl.col("units")
    assert filled_terminal("launch", SALES, "2024-01-15").status == 1
    said = filled_terminal("plan", "store_demand", "2024-01-15")
    assert f"  rejected  {SALES} 2024-01-15: quarantine_limit: 72 of 72 rows" in said.out
    assert f"  missing   {SALES}" not in said.out
    assert "Fix the sources of the rejected partitions" in said.out

    wrong_sales.clear()
    assert filled_terminal("launch", SALES, "2024-01-15").status == 0
    assert "rejected" not in filled_terminal("plan", "store_demand", "2024-01-15").out


def test_features_of_a_week_that_was_corrected_are_stale(
    filled_terminal: Terminal, wrong_sales: dict[str, pl.Expr]
) -> None:
    wrong_sales["2023-10-02"] = pl.col("units") + 1
    assert filled_terminal("launch", SALES, "2023-10-02").status == 0
    said = filled_terminal("plan", "store_demand", WEEK)
    # The week itself, and four that look back on it.
    assert said.out.count("  stale     ") == 5
    assert f"  stale     {FEATURES} 2023-10-30: {SALES} 2023-10-02 changed" in said.out
    assert "It would run" in said.out
    wrong_sales.clear()
    assert filled_terminal("launch", SALES, "2023-10-02").status == 0
    assert "stale" not in filled_terminal("plan", "store_demand", WEEK).out


def test_a_week_rejected_after_its_features_is_named_as_refused(
    filled_terminal: Terminal, wrong_sales: dict[str, pl.Expr]
) -> None:
    wrong_sales["2023-10-02"] = -pl.col("units")
    assert filled_terminal("launch", SALES, "2023-10-02").status == 1
    said = filled_terminal("plan", "store_demand", WEEK)
    assert f"  rejected  {SALES} 2023-10-02: quarantine_limit: 72 of 72 rows" in said.out
    assert f"read by {FEATURES} 2023-10-02, {FEATURES} 2023-10-09" in said.out
    assert "It would refuse. Fix the sources" in said.out
    wrong_sales.clear()
    assert filled_terminal("launch", SALES, "2023-10-02").status == 0
    assert "rejected" not in filled_terminal("plan", "store_demand", WEEK).out


def test_stale_inputs_of_features_are_rebuilt_first(
    filled_terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Features that are built again from stale rows are stale again."""
    load = Dataset.load.__func__

    def edited(cls: type[Dataset], spec: Any, context: Any) -> Dataset:
        changed = spec.model_copy(update={"volume": VolumeRule(block=0.9)}) if spec.name == "sales" else spec
        return load(cls, changed, context)

    monkeypatch.setattr(Dataset, "load", classmethod(edited))
    said = filled_terminal("plan", "store_demand", WEEK).out
    assert "are stale themselves" in said
    assert said.endswith(
        "To rebuild the stale partitions:\n"
        f"  ml-assets launch {SALES} 2023-01-09..{WEEK}\n"
        f"  ml-assets launch {FEATURES} 2023-02-06..{WEEK}\n"
    )


def test_a_new_column_makes_all_weeks_unusable_in_one_line(
    filled_terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = FeatureTable.load.__func__

    def edited(cls: type[FeatureTable], spec: Any, context: Any) -> FeatureTable:
        if spec.name == "sales_features":
            (price,) = (one for one in spec.contract.columns if one.name == "price")
            columns = (*spec.contract.columns, price.model_copy(update={"name": "tax"}))
            # A copy would keep what the contract has derived from its columns.
            fields = {name: getattr(spec.contract, name) for name in Contract.model_fields}
            contract = Contract(**{**fields, "columns": columns})
            spec = spec.model_copy(update={"contract": contract})
        return load(cls, spec, context)

    monkeypatch.setattr(FeatureTable, "load", classmethod(edited))
    said = filled_terminal("plan", "store_demand", WEEK).out.splitlines()
    assert [line[:80] for line in said if line.startswith(("  unusable", "  missing"))] == [
        f"  unusable  {FEATURES} 2023-02-06 to {WEEK}, 48 in all: its columns are not those of the contract"[
            :80
        ]
    ]
    assert f"  ml-assets launch {FEATURES} 2023-02-06..{WEEK}" in said
    refused = filled_terminal("launch", "store_demand", WEEK).err
    assert refused.count("its columns are not those of the contract") == 1


def test_a_past_week_does_not_take_values_of_a_study_that_saw_it(
    filled_terminal: Terminal, redeclared: Callable[..., None]
) -> None:
    """The study of a later week trained on the holdout of this one. The plan says which values it has in place."""
    space = {"hyperparameters": {"hidden": {"kind": "int", "low": 8, "high": 128}}}
    redeclared(tuning=TuningSection.model_validate({"space": space, "trials": 1}))
    platform = Platform(Settings(home=filled_terminal.home))
    trial = TrialOutcome(
        number=0, parameters={"hyperparameters.hidden": 64}, state="finished", validation_loss=1.0
    )
    later = StudyResult(
        study="1" * 64,
        name="store_demand-1",
        model="store_demand",
        partition="2024-06-24",
        snapshot="2" * 64,
        window=TrainedOn(commit="c", table=FEATURES, first="2023-07-31", last="2024-06-24", partitions=48),
        seen=Days((("2023-07-31", "2024-05-05"),)),
        sampler="tpe",
        pruner="none",
        trials=(trial,),
    )
    earlier = replace(later, partition="2023-11-06", seen=Days((("2023-01-02", "2023-11-12"),)))
    says = []
    for result in (later, earlier, later):
        store_result(platform, result, "<html>")
        (said,) = [
            line
            for line in filled_terminal("plan", "store_demand", WEEK).out.splitlines()
            if "values " in line
        ]
        says.append(said.strip())
    declared, of_the_study, again = says
    assert declared == (
        "values    the declared values are used: no study saw only days before the holdout (2023-11-13 to 2024-01-07), "
        f"study {later.digest[:12]} of 2024-06-24 has seen 2023-07-31 to 2024-05-05"
    )
    assert of_the_study == f"values    study {earlier.digest[:12]} of 2023-11-06: {earlier.because}"
    assert again.startswith(of_the_study)
    assert again.endswith("1 newer result that saw days of the holdout (2023-11-13 to 2024-01-07) or later")
    shutil.rmtree(platform.settings.artifacts_folder / "studies")


@pytest.mark.parametrize(
    ("model", "partition", "said"),
    [
        ("store_deman", WEEK, "no model is named 'store_deman': did you mean 'store_demand'?"),
        ("store_demand", "2024-01-02", "only 2024-01-01 to 2024-06-24; the partition before it is '2024-01-01'"),
        ("store_demand", "yesterday", "no partition 'yesterday', which is not a date: write YYYY-MM-DD"),
        ("store_demand", "2012-13-45", "no partition '2012-13-45', which is not a date: write YYYY-MM-DD"),
        ("store_demand", "2024-01-01..2024-01-08", "is trained for one partition"),
    ],
)  # fmt: skip
def test_what_does_not_exist_is_refused_with_what_does(
    terminal: Terminal, model: str, partition: str, said: str
) -> None:
    refused = terminal("plan", model, partition)
    assert refused.status == 1
    assert said in refused.err
    assert "Traceback" not in refused.err
