"""A model is never trained on inputs that are missing, rejected or too few; it says which, before any launch."""

import errno
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pytest

from ml_assets.components import FeatureTable
from ml_assets.components.failures import RETRY_TRANSIENT, final_unless_transient, missing_in
from ml_assets.data.tables.publish.rejected import accept_partition
from ml_assets.model.release.initial_version import InitialModelRefused
from ml_assets.model.release.promotion import promote
from ml_assets.model.release.releases import NotPromotable, bundles_of, registry_of, releases_of
from ml_assets_tests.components.installation import (
    QUIET,
    STAGES,
    Installation,
    component,
    facts_of,
    failure_metadata,
    failure_of,
    key_of,
    materialized,
    readings_components,
)
from ml_assets_tests.components.model_run import frozen, mlflow_run
from ml_assets_tests.components.readings_pipeline import (
    DATASET,
    FEATURE_TABLE,
    FEATURES,
    MODEL,
    PARTITIONS,
    PIPELINE,
    READINGS,
    WINDOW,
    Source,
    days,
    shifts,
)
from ml_assets_tests.release.recorded_evaluations import record_evaluation
from resources.job.events import WEIGHTS
from resources.lake import LakeBusy
from resources.ledger import Person
from resources.pool import ThisProcess
from resources.settings import Settings

FIRST, LAST = days(WINDOW, start=1)[0], days(WINDOW, start=1)[-1]


@pytest.fixture
def ready(installation: Installation) -> Installation:
    """Readings and features for the whole window."""
    installation.run(READINGS, partition=days(1)[0], last=LAST)
    assert installation.run(FEATURES, partition=FIRST, last=LAST).success
    return installation


def _steps(result: Any) -> list[str]:
    return [event.step_key for event in result.all_events if event.is_step_start]


@pytest.mark.parametrize("interruption", [dg.DagsterExecutionInterruptedError, KeyboardInterrupt])
@pytest.mark.parametrize("ending_fails", [False, True])
def test_a_terminated_step_is_not_tried_again_even_where_ending_it_failed(
    interruption: type[BaseException], ending_fails: bool
) -> None:
    attempts: list[int] = []

    @dg.op(retry_policy=RETRY_TRANSIENT)
    def train(context: dg.OpExecutionContext) -> None:
        with final_unless_transient(Settings()):
            attempts.append(1)
            context.instance.report_run_canceling(context.run)  # as the page's button does first
            try:
                raise interruption
            finally:
                if ending_fails:
                    raise LakeBusy("somebody else writes")

    @dg.job
    def one_step() -> None:
        train()

    with dg.instance_for_test() as instance:
        with pytest.raises(dg.DagsterExecutionInterruptedError):
            one_step.execute_in_process(instance=instance)
        (run,) = instance.get_runs()
    assert attempts == [1]
    assert run.status == dg.DagsterRunStatus.CANCELED


def exhausted(folder: Path) -> None:
    """Raise the error of memory, or of the disk of `folder`, that ran out."""
    if folder.name == "memory":
        raise MemoryError("no room for a table")
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("memory", r"^OutOfMemory: partition 1: MemoryError: no room for a table\. Its process held .*[MG]B"),
        ("disk", r"^DiskFull: the disk of .* are free.*TaskFailed: partition 1: OSError"),
    ],
)
def test_a_task_of_this_process_that_ran_out_says_of_how_much(what: str, said: str, tmp_path: Path) -> None:
    """As a step without tasks does."""
    with pytest.raises(dg.Failure, match=said), final_unless_transient(Settings(home=tmp_path)):
        list(ThisProcess().map(exhausted, {"partition 1": tmp_path / what}))


def test_missing_partitions_are_refused_by_name_before_the_launch(
    installation: Installation,
) -> None:
    present = days(WINDOW, start=1)[:-2]
    installation.run(READINGS, partition=days(1)[0], last=present[-1])
    installation.run(FEATURES, partition=present[0], last=present[-1])
    result = installation.train(LAST)
    lacking = days(WINDOW, start=1)[-2:]
    said = failure_of(result)
    assert said.startswith(f"{MODEL} {LAST} refuses to build on unusable inputs: ")
    assert all(f"{FEATURES} {key} (is missing)" in said for key in lacking)
    assert missing_in(failure_metadata(result)) == {READINGS: lacking, FEATURES: lacking}
    assert _steps(result) == [f"{MODEL}.validate_inputs"]


def test_a_rejected_partition_is_refused_with_its_reason(ready: Installation, source: Source) -> None:
    """Refused although main holds an older version of the partition."""
    day = days(WINDOW, start=1)[3]
    source.spoiled[day] = lambda rows: rows.with_columns(pl.col("made") * 100)
    assert ready.run(READINGS, partition=day).success
    assert not ready.run(FEATURES, partition=day).success
    assert day in ready.main.keys(FEATURES)
    result = ready.train(LAST)
    assert f"{FEATURES} {day} (is rejected: out_of_range in made" in failure_of(result)
    assert missing_in(failure_metadata(result)) == {}


def test_a_raw_day_rejected_after_its_features_is_refused_by_name(
    ready: Installation, source: Source
) -> None:
    """The features stand on main as they were, all current: only the verdict on what they were made from changed."""
    day, after = days(WINDOW, start=1)[5:7]
    source.spoiled[day] = lambda rows: rows.with_columns(pl.lit(-1.0).alias("load"))
    assert not ready.run(READINGS, partition=day).success
    result = ready.train(LAST)
    said = failure_of(result)
    assert f"{READINGS} {day} (is rejected: out_of_range in load" in said
    assert f"read by {FEATURES} {day}, {FEATURES} {after}" in said
    assert missing_in(failure_metadata(result)) == {}
    assert _steps(result) == [f"{MODEL}.validate_inputs"]

    accept_partition(
        ready.platform.lake,
        ready.platform.ledger,
        READINGS,
        day,
        Person.unchecked("ada"),
        "the sensor was turned",
    )
    strict = ready.declared_as(readings_components(pipeline={"on_stale_inputs": "refuse"}))
    said = failure_of(strict.train(LAST))
    assert f"{FEATURES} {day} (is stale: {READINGS} {day} changed)" in said
    assert "is rejected" not in said


def test_features_cannot_be_built_on_features_of_a_rejected_day(ready: Installation, source: Source) -> None:
    before, day = days(WINDOW, start=1)[4:6]
    ideas: dict[str, Any] = {
        "name": "ideas",
        "function": f"{__name__}.ideas",
        "inputs": [{"table": FEATURES, "lookback": 0}],
    }
    deeper = ready.declared_as([*readings_components(), component(FeatureTable, FEATURE_TABLE, **ideas)])
    assert deeper.run("features/ideas", partition=day).success
    raw = deeper.main.digests(READINGS)
    made_from = deeper.main.manifest("features/ideas", day).behind
    assert made_from == ((READINGS, before, raw[before]), (READINGS, day, raw[day]))
    source.spoiled[day] = lambda rows: rows.with_columns(pl.lit(-1.0).alias("load"))
    assert not ready.run(READINGS, partition=day).success
    said = failure_of(deeper.run("features/ideas", partition=day))
    assert f"{FEATURES} {day} is made from {READINGS} {day}, which is rejected" in said


def ideas(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.LazyFrame:
    """The features once more."""
    return inputs[FEATURES].filter(pl.col("partition_date").is_between(first, last))


def other_shifts(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.LazyFrame:
    """The same rows from other code."""
    return shifts(inputs, first, last)


def test_a_changed_declaration_makes_what_was_built_before_stale_by_name(ready: Installation) -> None:
    rules = FEATURE_TABLE["contract"]
    tightened = [{**column, "ge": 0} if column["name"] == "made" else column for column in rules["columns"]]
    (reads,) = FEATURE_TABLE["inputs"]
    changes: dict[str, dict[str, Any]] = {
        "the contract changed": {"contract": {**rules, "columns": tightened}},
        "the code changed (": {"function": f"{__name__}.other_shifts"},
        f"the lookback on {READINGS} changed (2 partitions to 4)": {"inputs": [{**reads, "lookback": 3}]},
        "the rule on volume or drift, or the quarantine, changed": {"volume": {"kind": "previous"}},
    }
    for why, change in changes.items():
        strict = ready.declared_as(
            readings_components(features=change, pipeline={"on_stale_inputs": "refuse"})
        )
        result = strict.train(LAST)
        *_, last = days(WINDOW, start=1)
        named = rf"{FEATURES} \S+ to {last}, \d+ in all \(is stale: {re.escape(why)}"
        assert re.search(named, failure_of(result))
        assert _steps(result) == [f"{MODEL}.validate_inputs"]


def test_a_changed_contract_of_a_raw_table_is_found_through_its_features(ready: Installation) -> None:
    rules = DATASET["contract"]
    tightened = [
        {**column, "le": 1000} if column["name"] == "made" else column for column in rules["columns"]
    ]
    dataset = {"contract": {**rules, "columns": tightened}}
    strict = ready.declared_as(readings_components(dataset=dataset, pipeline={"on_stale_inputs": "refuse"}))
    before, day = days(2)
    why = f"is stale: {READINGS} {before}, {day} are stale themselves"
    assert f"{FEATURES} {day} ({why})" in failure_of(strict.train(LAST))


def test_days_do_not_pass_for_the_weeks_that_begin_with_them(ready: Installation) -> None:
    weekly: dict[str, Any] = {"partitions": {**PARTITIONS, "cadence": "weekly"}}
    window = {"window": {"train": 1, "validation": 1, "holdout": 1}}
    weeks = ready.declared_as(readings_components(weekly, weekly, weekly | window))
    result = weeks.train(days(15)[14])
    mondays = [days(15)[0], days(15)[7], days(15)[14]]
    assert set(mondays[1:]) <= set(ready.main.keys(FEATURES))
    assert f"{FEATURES} {mondays[0]} to {mondays[-1]}, 3 in all (is missing)" in failure_of(result)
    assert missing_in(failure_metadata(result)) == {READINGS: mondays, FEATURES: mondays}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"end": days(9)[-1]}, f"partitions end with {days(9)[-1]}, at the table's end"),
        ({"start": days(15)[-1]}, f"partitions begin with {days(15)[-1]}, at the table's start"),
    ],
)
def test_days_outside_the_declared_table_build_no_features(
    ready: Installation, change: dict[str, Any], why: str
) -> None:
    """Main still holds them from before the edit. Features would be built without the days before them."""
    day = days(12)[-1]
    edited = readings_components({"partitions": PARTITIONS | change}, pipeline={"on_stale_inputs": "refuse"})
    cut = ready.declared_as(edited)
    built = ready.main.digests(FEATURES)[day]
    refused = cut.run(FEATURES, partition=day)
    assert f"{READINGS} {day} is missing ({day}: {why})" in failure_of(refused)
    assert READINGS not in missing_in(failure_metadata(refused))
    assert cut.main.digests(FEATURES)[day] == built
    said = failure_of(cut.train(LAST))
    assert "is stale: " in said
    assert "is missing" in said


def test_a_range_of_models_in_one_run_is_refused_with_the_remedy(installation: Installation) -> None:
    first, last = days(2, start=WINDOW)
    said = failure_of(installation.run(*STAGES, partition=first, last=last))
    assert f"{MODEL} {first} to {last}: a run trains one partition. Launch a backfill" in said


def test_a_ledger_takes_no_verdicts_on_the_lake_of_another_environment(
    installation: Installation, source: Source
) -> None:
    """Otherwise the newest verdict of one environment would count for a day that the other rejected."""
    (day,) = days(1)
    source.spoiled[day] = lambda rows: rows.with_columns(pl.lit(-1.0).alias("load"))
    assert not installation.run(READINGS, partition=day).success
    source.mend()
    settings = installation.settings.model_copy(update={"environment": "staging"})
    other = Installation(settings.home, settings=settings)
    assert "belongs to environment 'local', and ML_ASSETS_ENVIRONMENT is 'staging'" in failure_of(
        other.run(READINGS, partition=day)
    )


def test_undeclared_columns_are_refused_before_the_launch(
    ready: Installation,
) -> None:
    """The window is of one piece, and still no window of the declared table."""
    rules = FEATURE_TABLE["contract"]
    wider = {**rules, "columns": [*rules["columns"], {"name": "crew", "dtype": "int64"}]}
    result = ready.declared_as(readings_components(features={"contract": wider})).train(LAST)
    said = failure_of(result)
    assert "is unusable: its columns are not those of the contract: crew (int64) is missing" in said
    assert missing_in(failure_metadata(result)) == {FEATURES: days(WINDOW, start=1)}
    assert _steps(result) == [f"{MODEL}.validate_inputs"]


def test_a_window_longer_than_the_table_is_refused_with_the_arithmetic(ready: Installation) -> None:
    result = ready.train(days(WINDOW)[-2])
    assert failure_of(result) == (
        f"{MODEL} {days(WINDOW)[-2]} needs 18 partitions of {FEATURES} (train 10, validation 2, holdout 6), but "
        "the table begins only 17 partitions before that: choose a later partition or a shorter window"
    )


def test_stale_inputs_are_refused_where_the_pipeline_says_so(ready: Installation, source: Source) -> None:
    changed, after = days(WINDOW, start=1)[3:5]
    source.spoiled[changed] = lambda rows: rows.with_columns(pl.col("made") + 1)
    assert ready.run(READINGS, partition=changed).success
    strict = ready.declared_as(readings_components(pipeline={"on_stale_inputs": "refuse"}))
    said = failure_of(strict.train(LAST))
    for key in (changed, after):
        assert f"{FEATURES} {key} (is stale: {READINGS} {changed} changed)" in said


def test_rows_changed_on_the_disk_are_not_trained_on(ready: Installation) -> None:
    """The file keeps its size: a person or a disk changed one byte of it."""
    (file,) = ready.main.files(FEATURES, [LAST])
    place = ready.platform.lake.fetch("main", [file.path])[file.path]
    content = place.read_bytes()
    place.chmod(0o644)
    place.write_bytes(content[:99] + bytes([content[99] ^ 1]) + content[100:])
    result = ready.train(LAST)
    assert f"{file.path} is committed ({file.size} bytes) but {place} is missing or has other" in failure_of(
        result
    )
    assert _failed(result) == {f"{MODEL}.snapshot"}


def test_numbers_under_a_binary_objective_are_refused_by_row(
    ready: Installation,
) -> None:
    """Refused before anything is launched."""
    gate = {"name": "ranks", "metric": "auc", "better_than": "baseline"}
    record_evaluation = PIPELINE["evaluation"] | {"objective": "binary", "gates": [gate]}
    result = ready.declared_as(readings_components(pipeline={"evaluation": record_evaluation})).train(LAST)
    said = failure_of(result)
    assert f"label 'made' is neither 0 nor 1 in {WINDOW * 48} of {WINDOW * 48} rows: at={FIRST} 06:00" in said
    assert "machine=drill has " in said
    assert _steps(result) == [f"{MODEL}.validate_inputs", f"{MODEL}.snapshot"]


def test_a_gate_on_an_empty_slice_is_refused_before_the_launch(
    ready: Installation,
) -> None:
    gate = {"name": "saws", "metric": "rmse", "better_than": "baseline", "slice": {"machine": "saw"}}
    evaluation = PIPELINE["evaluation"] | {"gates": [gate]}
    result = ready.declared_as(readings_components(pipeline={"evaluation": evaluation})).train(LAST)
    assert "gate 'saws' checks the slice machine=saw" in failure_of(result)
    assert "machine has drill, lathe, mill, press" in failure_of(result)
    assert _steps(result)[-1] == f"{MODEL}.snapshot"


_HOME, _NO_LAUNCHER, _SEED = "REFUSALS_HOME", "REFUSALS_NO_LAUNCHER", "REFUSALS_SEED"
_LOOKBACK = "REFUSALS_LOOKBACK"


def _train_job() -> dg.JobDefinition:
    """Made anew for each run, as a process of its own does."""
    (reads,) = FEATURE_TABLE["inputs"]
    declared = readings_components(
        features={"inputs": [{**reads, "lookback": int(os.environ.get(_LOOKBACK, "1"))}]},
        pipeline={"seed": int(os.environ.get(_SEED, "0")), "on_stale_inputs": "refuse"},
    )
    installation = Installation(Path(os.environ[_HOME]), declared)
    if _NO_LAUNCHER in os.environ:
        installation.platform.__dict__["launcher"] = None  # the step fails where it would launch
    return installation.defs.resolve_job_def(f"train_{MODEL}")


@dataclass(frozen=True)
class _RunsMadeAnew:
    """Runs of the training job, each with definitions of its own as in a process of its own."""

    installation: Installation
    instance: dg.DagsterInstance

    def first(self) -> dg.JobExecutionResult:
        return self._executed(asset_selection=[key_of(name) for name in STAGES])

    def continued(self, failed: dg.JobExecutionResult) -> dg.JobExecutionResult:
        """Execute again what failed and what comes after it."""
        options = dg.ReexecutionOptions.from_failure(failed.run_id, self.instance)
        return self._executed(reexecution_options=options)

    def _executed(self, **how: Any) -> dg.JobExecutionResult:
        partition = {"dagster/partition": LAST}
        job = dg.reconstructable(_train_job)
        return dg.execute_job(job, instance=self.instance, tags=partition, run_config=QUIET, **how)


@pytest.fixture
def runs(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_RunsMadeAnew]:
    """Runs over built tables, without a training."""
    monkeypatch.setenv(_HOME, str(tmp_path))
    installation = Installation(tmp_path)
    (tmp_path / "dagster").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "dagster")) as instance:
        installation.instance = instance
        installation.run(READINGS, partition=days(1)[0], last=LAST)
        assert installation.run(FEATURES, partition=FIRST, last=LAST).success
        yield _RunsMadeAnew(installation, instance)


@pytest.mark.nightly
def test_a_retried_run_trains_on_nothing_rejected_or_redeclared_since(
    source: Source, runs: _RunsMadeAnew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run validated the window and failed at the start of the training. The retry validates it again."""
    with monkeypatch.context() as away:
        away.setenv(_NO_LAUNCHER, "yes")
        failed = runs.first()
    assert _failed(failed) == {f"{MODEL}.train"}
    day = days(WINDOW, start=1)[5]
    source.spoiled[day] = lambda rows: rows.with_columns(pl.lit(-1.0).alias("load"))
    assert not runs.installation.run(READINGS, partition=day).success
    again = runs.continued(failed)
    assert _steps(again) == [f"{MODEL}.train"]
    assert f"{READINGS} {day} (is rejected: out_of_range in load" in _said(again)
    monkeypatch.setenv(_SEED, "9")
    again = runs.continued(failed)
    assert _steps(again) == [f"{MODEL}.train"]
    assert f"the settings changed since its training set was frozen. Materialize {MODEL}" in _said(again)


def test_a_continued_run_takes_no_window_of_earlier_declarations(
    runs: _RunsMadeAnew, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Validated by the run before, which failed to write the snapshot; stale partitions are refused."""
    in_the_way = tmp_path / "cache" / "snapshots"
    in_the_way.parent.mkdir(exist_ok=True)
    in_the_way.touch()
    failed = runs.first()
    assert _failed(failed) == {f"{MODEL}.snapshot"}
    in_the_way.unlink()
    for edited, value in ((_SEED, "9"), (_LOOKBACK, "0")):
        with monkeypatch.context() as edit:
            edit.setenv(edited, value)
            again = runs.continued(failed)
        assert _steps(again) == [f"{MODEL}.snapshot"]
        assert f"{MODEL} {LAST} does not go on with a window that was validated before" in _said(again)


def _said(result: dg.JobExecutionResult) -> str:
    (failure,) = [event.step_failure_data for event in result.all_events if event.is_step_failure]
    assert failure.user_failure_data is not None
    return str(failure.user_failure_data.description)


@pytest.mark.nightly
def test_code_edited_during_the_training_makes_no_model(
    ready: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The evaluation builds the network once more, and would put the weights into another one under the old name."""
    file = tmp_path / "workshop" / "model.py"
    file.parent.mkdir()
    file.write_text("from ml_assets_tests.components.readings_pipeline import build\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    edited = ready.declared_as(readings_components(pipeline={"model": {"function": "workshop.model.build"}}))
    launcher = ready.platform.launcher
    before = file.read_text()
    ready.platform.__dict__["launcher"] = _Then(
        launcher, "run", lambda: file.write_text(f"{before}print('edited')\n")
    )
    result = edited.train(LAST)
    ready.platform.__dict__["launcher"] = launcher
    assert _failed(result) == {f"{MODEL}.evaluate"}
    assert (
        "cannot continue: the code of the model changed since its training set was frozen. Materialize"
        in failure_of(result)
    )
    assert releases_of(ready.platform).log.evaluations(MODEL) == []
    file.write_text(before)
    trained = materialized(result, STAGES[1])[LAST].metadata  # as before the edit: `plan` trusts this digest
    again = facts_of(edited.train(LAST), LAST)[STAGES[1]]
    assert again["reused"] is True
    assert again["settings_digest"] == trained["settings_digest"].value


def test_weights_changed_after_the_training_make_no_model(ready: Installation) -> None:
    """They were blessed and registered under the digest of the measured ones. The next run makes the file again."""

    def change() -> None:
        (weights,) = (ready.settings.artifacts_folder / "training").rglob(WEIGHTS)
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.write_bytes(content)

    launcher = ready.platform.launcher
    ready.platform.__dict__["launcher"] = _Then(launcher, "run", change)
    result = ready.train(LAST)
    ready.platform.__dict__["launcher"] = launcher
    assert _failed(result) == {f"{MODEL}.evaluate"}
    assert "is not the file that the training" in failure_of(result)
    assert releases_of(ready.platform).log.evaluations(MODEL) == []
    assert facts_of(ready.train(LAST), LAST)[STAGES[3]]["version"] == 1


@pytest.mark.nightly
def test_a_day_rejected_during_the_training_blocks_the_registration(
    ready: Installation, source: Source
) -> None:
    """Whenever it is: as the training ends, as the evaluation is recorded, before the promotion."""
    platform = ready.platform
    day = days(WINDOW, start=1)[5]
    others = iter(range(1, 9))

    def reject() -> None:
        wrong = -1.0 * next(others)
        source.spoiled[day] = lambda rows: rows.with_columns(pl.lit(wrong).alias("load"))
        assert not ready.run(READINGS, partition=day).success

    def accept() -> None:
        accept_partition(
            platform.lake, platform.ledger, READINGS, day, Person.unchecked("ada"), "the sensor was turned"
        )

    launcher, tracker = platform.launcher, platform.tracker
    platform.__dict__["launcher"] = _Then(launcher, "run", reject)
    result = ready.train(LAST)
    platform.__dict__["launcher"] = launcher
    said = failure_of(result)
    assert said.startswith(
        f"{MODEL} {LAST} refuses to build on unusable inputs: {READINGS} {day} (is rejected: "
    )
    assert "It is trained but not registered. Its weights are kept" in said
    assert _failed(result) == {f"{MODEL}.evaluate"}
    trained = materialized(result, STAGES[1])[LAST].metadata
    run = mlflow_run(ready, str(trained["mlflow/run"].value))
    assert run.info.status == "FINISHED"
    assert run.data.metrics["worker_hours"] > 0
    assert releases_of(platform).log.evaluations(MODEL) == []

    accept()
    platform.__dict__["tracker"] = _Then(tracker, "record", reject)
    result = ready.train(LAST)
    platform.__dict__["tracker"] = tracker
    assert f"{READINGS} {day} (is rejected: " in failure_of(result)
    assert _failed(result) == {f"{MODEL}.register"}
    assert materialized(result, STAGES[1])[LAST].metadata["reused"].value is True
    assert [one.status for one in releases_of(platform).log.evaluations(MODEL)] == ["blessed"]
    assert registry_of(platform).versions(MODEL) == []

    accept()
    assert facts_of(ready.train(LAST), LAST)[STAGES[3]]["version"] == 1
    reject()
    with pytest.raises(NotPromotable, match=f"{READINGS} {day} is rejected: out_of_range in load"):
        promote(releases_of(platform), MODEL, 1, by=Person.unchecked("ada"), reason="the first")
    with pytest.raises(
        InitialModelRefused, match=f"{MODEL}/1 was trained on rows .*{READINGS} {day} is rejected"
    ):
        frozen(ready, LAST, f"{MODEL}/1")

    accept()
    newest = releases_of(platform).log.evaluations(MODEL)[-1]
    bundle = bundles_of(platform).open(newest.bundle_digest)
    begun_with = {"model": PIPELINE["model"] | {"init_from": f"{MODEL}/1"}}
    platform.__dict__["lake"] = _Then(
        platform.lake,
        "commit",  # of the snapshot, before the training
        lambda: record_evaluation(
            platform.ledger, bundle, "rejected", partition=LAST, trained_on=newest.trained_on
        ),
    )
    result = ready.declared_as(readings_components(pipeline=begun_with)).train(LAST)
    assert f"{MODEL}/1 is rejected by its newest evaluation" in failure_of(result)
    assert _failed(result) == {f"{MODEL}.train"}


class _Then:
    """A real part of the platform, and what happens at the end of one of its calls."""

    def __init__(self, part: Any, call: str, happens: Callable[[], object]) -> None:
        self._part = part
        self._call = call
        self._happens = happens

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._part, name)
        return self._and_then(found) if name == self._call else found

    def _and_then(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            answer = call(*arguments, **named)
            rejecting = threading.Thread(target=self._happens)  # a run of its own, as in another process
            rejecting.start()
            rejecting.join()
            return answer

        return called


def _failed(result: Any) -> set[str]:
    return {event.step_key for event in result.all_events if event.is_step_failure}


def test_a_lake_that_is_busy_is_asked_again(installation: Installation) -> None:
    installation.platform.__dict__["lake"] = _BusyOnce(installation.platform.lake)
    result = installation.train(LAST)
    assert "refuses to build on unusable inputs" in failure_of(result)
    assert [event.step_key for event in result.all_events if event.is_step_up_for_retry] == [
        f"{MODEL}.validate_inputs"
    ]


class _BusyOnce:
    """A real lake whose first answer is that somebody else holds it."""

    def __init__(self, lake: Any) -> None:
        self._lake = lake
        self._was_busy = False

    def __getattr__(self, name: str) -> Any:
        if not self._was_busy:
            self._was_busy = True
            raise LakeBusy("another process is writing")
        return getattr(self._lake, name)


def test_an_own_metric_that_cannot_be_imported_is_refused_before_training(installation: Installation) -> None:
    metric = {"function": "ml_assets_tests.components.unimportable_metric.cost", "better": "lower"}
    evaluation = PIPELINE["evaluation"] | {"metrics": [metric]}
    declared = installation.declared_as(readings_components(pipeline={"evaluation": evaluation}))
    refused = declared.train(LAST)
    assert failure_of(refused).startswith(
        f"{MODEL} would fail after its training: evaluation.metrics[0].function cannot import "
        f"'{metric['function']}': RuntimeError: only "
    )
    assert len(_steps(refused)) == 1
