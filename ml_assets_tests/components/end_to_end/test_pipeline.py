"""The life of a model, trained for real by two processes: first version, again, promoted, challenged, replaced.

One installation and five runs, which the tests share. A fixture asks for the runs that its own needs before it, so each
test also passes alone.
"""

import hashlib
import json
import re
import sqlite3
import threading
from collections.abc import Generator
from contextlib import closing, contextmanager
from datetime import date
from pathlib import Path

import dagster as dg
import polars as pl
import pytest

from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.data.features.encoding import FittedState
from ml_assets.data.snapshots.keep import branches_of, rows_behind_kept, version_branch
from ml_assets.data.snapshots.split_reader import FITTED, SPLITS, file_sha256
from ml_assets.foundation.days import Days
from ml_assets.model.evaluation.metrics.metrics import SERVING_NAMES
from ml_assets.model.evaluation.report_document import Report
from ml_assets.model.release.promotion import promote, register
from ml_assets.model.release.releases import bundles_of, registry_of, releases_of
from ml_assets.model.release.rollback import demote
from ml_assets.model.release.runtime import WEIGHTS
from ml_assets.model.steps.record import recorded_report
from ml_assets.model.steps.values import InitialVersion, TrainingSet
from ml_assets.pages.difference_page import difference_page
from ml_assets.pages.partition_page import partition_page, users_of
from ml_assets.pages.version_difference import KnownFacts, compare_versions
from ml_assets_tests.components import readings_pipeline
from ml_assets_tests.components.installation import (
    PLANTED,
    STAGES,
    Installation,
    failure_of,
    key_of,
    materialized,
    readings_components,
)
from ml_assets_tests.components.model_run import (
    CHECKPOINT,
    EVALUATION,
    REGISTERED,
    TRAINING_SET,
    ModelRun,
    frozen,
    job_of,
    mlflow_run,
    train,
)
from ml_assets_tests.components.noise_champion import randomize_weights
from ml_assets_tests.components.readings_pipeline import (
    FEATURES,
    MODEL,
    READINGS,
    TRAIN,
    VALIDATION,
    WINDOW,
    days,
)
from ml_assets_tests.release.recorded_evaluations import record_evaluation
from resources.job.events import EVENTS
from resources.ledger import Person, TrainedOn
from resources.tracking.mlflow_client import open_client

DAY, NEXT_DAY = days(2, start=WINDOW)
FIVE_STEPS = [f"{MODEL}.{name}" for name in ("validate_inputs", "snapshot", "train", "evaluate", "register")]


@pytest.fixture(scope="module")
def installation(shared_installation: Installation) -> Installation:
    """Readings and features for both days."""
    return shared_installation.with_tables(2)


@pytest.fixture(scope="module")
def first(installation: Installation) -> ModelRun:
    """Run that makes the first version."""
    return train(installation, DAY)


@pytest.fixture(scope="module")
def again(installation: Installation, first: ModelRun) -> ModelRun:
    """Second run of the same day."""
    return train(installation, DAY)


def trained_on_of(installation: Installation) -> TrainedOn:
    """The window behind the first evaluation."""
    return releases_of(installation.platform).log.evaluations(MODEL)[0].trained_on


def first_branch(installation: Installation, first: ModelRun) -> str:
    """Branch that keeps the input of version 1."""
    source = trained_on_of(installation).commit
    return version_branch(MODEL, 1, first.facts[EVALUATION]["bundle"], source)


@pytest.fixture(scope="module")
def challenger(installation: Installation, first: ModelRun) -> ModelRun:
    """Run of the next day, with the first version in production."""
    promote(releases_of(installation.platform), MODEL, 1, by=Person.unchecked("ada"), reason="the first")
    return train(installation, NEXT_DAY)


@pytest.fixture(scope="module")
def tampered(installation: Installation, challenger: ModelRun) -> ModelRun:
    """Run of the next day after somebody improved all numbers stored with the champion."""
    champion = registry_of(installation.platform).version(MODEL, 1)
    installation.platform.tracker.record(
        champion.run_id, {"holdout_rmse": 0.001, "best_validation_loss": 0.0}, 1
    )
    for name, value in {"holdout_rmse": "0.001", "gate_status": "blessed"}.items():
        registry_of(installation.platform).tag(MODEL, 1, name, value)
    return train(installation, NEXT_DAY)


@pytest.fixture(scope="module")
def beside_noise(installation: Installation, first: ModelRun, challenger: ModelRun) -> ModelRun:
    """Run of the next day with noise for weights in production."""
    noise = randomize_weights(installation, first.facts[EVALUATION]["bundle"], DAY)
    run = first.facts[CHECKPOINT]["mlflow/run"]
    releases = releases_of(installation.platform)
    record_evaluation(
        installation.platform.ledger,
        noise,
        partition=DAY,
        trained_on=trained_on_of(installation),
        gates=releases.log.evaluations(MODEL)[0].gates,
    )
    version = register(releases, noise, run_id=run, links={})
    promote(releases, MODEL, version.number, by=Person.unchecked("eve"), reason="noise")
    return train(installation, NEXT_DAY)


# One click


def test_one_run_of_five_steps_makes_the_four_assets(first: ModelRun) -> None:
    assert [event.step_key for event in first.result.all_events if event.is_step_success] == FIVE_STEPS
    assert list(first.facts) == list(STAGES)
    assert first.facts[CHECKPOINT]["world size"] == 2
    assert first.facts[CHECKPOINT]["reused"] is False
    assert not any("path" in facts for facts in first.facts.values())  # of values between steps


def test_asking_for_any_of_the_four_asks_for_all_of_them(installation: Installation) -> None:
    graph = installation.defs.resolve_asset_graph()
    all_four = {key_of(stage) for stage in STAGES}
    for stage in STAGES:
        together = graph.get_execution_set_asset_and_check_keys(key_of(stage))
        assert {key for key in together if isinstance(key, dg.AssetKey)} == all_four
    (pipeline,) = {installation.defs.get_assets_def(key) for key in all_four}
    assert not pipeline.can_subset
    # `dg launch` needs all four by name; each one's page says how.
    (told,) = {re.findall("--assets (.*)`", graph.get(key).description or "")[0] for key in all_four}
    assert dg.AssetSelection.from_coercible(told.split(",")).resolve(graph) == all_four


def test_loss_was_observed_on_the_checkpoint_while_it_trained(first: ModelRun) -> None:
    observed = [
        event.asset_observation_data.asset_observation
        for event in first.result.get_asset_observation_events()
    ]
    of_checkpoint = [one for one in observed if one.asset_key == key_of(CHECKPOINT)]
    assert len(of_checkpoint) >= 3
    assert all(one.partition == DAY for one in of_checkpoint)
    assert "validation_loss" in of_checkpoint[-1].metadata


def test_checks_say_that_inputs_are_current_and_the_gate_passed(first: ModelRun) -> None:
    checks = {check.check_name: check for check in first.result.get_asset_check_evaluations()}
    assert checks["inputs_current"].passed
    assert checks["inputs_current"].description == f"all {WINDOW} partitions are current, at any depth"
    assert checks["gate"].passed
    assert first.facts[EVALUATION]["decision"] == "blessed"
    assert first.facts[EVALUATION]["rmse"] < first.facts[EVALUATION]["baseline_rmse"]
    file = Path(first.facts[EVALUATION]["report_file"].removeprefix("file://"))
    report = file.read_text()
    shown = first.facts[REGISTERED]
    assert [*shown][:2] == ["summary", "version"]
    assert [*shown][-1] == "bundle"
    assert shown["summary"].startswith(f"**{first.facts[EVALUATION]['why']}**")
    assert shown["summary"].count("](data:image/png;base64,") == 1
    card = first.facts[REGISTERED]["model_card"]
    assert card == first.facts[REGISTERED]["report"].replace("report.html", "model_card.html")
    assert first.facts[EVALUATION]["evaluation"] in card
    assert "Model card: " in file.with_name("model_card.html").read_text()
    assert re.search(r"aive baseline \(mean by machine, prior of \d+ rows?, chosen on validation\)", report)


def test_a_regression_on_the_same_columns_stands_beside_the_model(
    installation: Installation, first: ModelRun
) -> None:
    reference = first.facts[EVALUATION]["reference_rmse"]
    assert reference < 0.5 * first.facts[EVALUATION]["baseline_rmse"]
    tracked = mlflow_run(installation, first.facts[CHECKPOINT]["mlflow/run"]).data.metrics
    assert tracked["holdout_reference_rmse"] == pytest.approx(reference, rel=1e-6)
    page = Path(first.facts[EVALUATION]["report_file"].removeprefix("file://"))
    report = Report.model_validate_json((page.parent / "evaluation.json").read_text())
    assert report.evaluation.values("reference")["rmse"] == pytest.approx(reference, rel=1e-6)
    name = report.evaluation.names["reference"]
    assert name.startswith("linear regression on the same columns (penalty ")
    assert f"L{name[1:]}" in page.read_text()
    summary = first.facts[EVALUATION]["summary"]
    assert "| metric | challenger | baseline | reference |" in " ".join(summary.split())
    assert "Against the reference model" in summary or f"A {name} is better: " in summary


# Lineage


def test_lineage_leads_both_ways(installation: Installation, first: ModelRun) -> None:
    commit_id, tracked = first.facts[TRAINING_SET]["lake/commit"], first.facts[CHECKPOINT]["mlflow/run"]
    dagster_run = first.result.run_id
    version = registry_of(installation.platform).version(MODEL, first.facts[REGISTERED]["version"])
    run = mlflow_run(installation, tracked).data.tags

    commit = installation.platform.lake.read_commit(commit_id)
    assert commit.metadata["dagster_run"] == dagster_run
    assert commit.metadata["::lakefs::Dagster::url[url:ui]"] == f"http://ui.test/runs/{dagster_run}"
    assert run["dagster_run"] == dagster_run
    assert run["model_version"] == f"{MODEL}/{version.number}"
    assert version.run_id == tracked
    assert version.tags["dagster_run"] == dagster_run
    assert version.tags["lake_commit"] == run["lake_commit"] == commit_id
    assert version.tags["partition"] == DAY
    assert version.tags["fingerprint"] == run["fingerprint"] == first.facts[TRAINING_SET]["fingerprint"]
    assert version.tags["snapshot_digest"] == run["snapshot_digest"] == commit.metadata["snapshot"]
    assert (
        run["schema_hash"] == first.facts[TRAINING_SET]["schema_hash"]
    )  # of the job, checked by its workers
    lineage = bundles_of(installation.platform).open(first.facts[EVALUATION]["bundle"]).facts.lineage
    assert lineage.feature_versions == {
        FEATURES: installation.main.manifests(FEATURES, [DAY])[DAY].code_version
    }


def test_what_was_trained_on_is_kept_for_as_long_as_the_version(
    installation: Installation, first: ModelRun
) -> None:
    commit = first.facts[TRAINING_SET]["lake/commit"]
    assert first.branches == {first_branch(installation, first): commit}
    assert trained_on_of(installation).commit == rows_behind_kept(installation.platform.lake, commit)
    held = {stat.path for stat in installation.platform.lake.list(commit, f"snapshots/{MODEL}/{DAY}/")}
    documents = {"snapshot.json", "fitted.json", *(f"{split}.index.parquet" for split in SPLITS)}
    assert {path.rsplit("/", 1)[1] for path in held} == documents


def test_a_training_that_cannot_start_fails_for_good(installation: Installation, first: ModelRun) -> None:
    """The step is not retried, and its input was kept before the launch."""
    wrong = {
        "function": readings_pipeline.PIPELINE["model"]["function"],
        "hyperparameters": {"start": "high"},
    }
    other = installation.declared_as(readings_components(pipeline={"model": wrong}))
    result = other.train(DAY)
    assert f"{readings_pipeline.HERE}.build refuses hyperparameters {{'start': 'high'}}: " in failure_of(
        result
    )
    assert [event.step_key for event in result.get_step_failure_events()] == [f"{MODEL}.train"]
    kept = materialized(result, TRAINING_SET)[DAY].metadata
    branch = kept["lake/branch"].value
    assert branch.startswith(branches_of(kept["fingerprint"].value))
    assert installation.platform.lake.branches(branch) == {branch: kept["lake/commit"].value}
    run = installation.platform.tracker.find(MODEL, kept["fingerprint"].value)
    assert run is not None
    assert mlflow_run(installation, run).info.status == "FAILED"


@contextmanager
def _mlflow_away_until_a_training_started(installation: Installation) -> Generator[None]:
    """Take MLflow's experiments away, and give them back when workers have told of a new training."""
    database = installation.platform.tracker.uri.removeprefix("sqlite:///")
    known = set(installation.settings.artifacts_folder.glob(f"training/*/*/{EVENTS}"))
    is_over = threading.Event()

    def rename(old: str, new: str) -> None:
        with closing(sqlite3.connect(database, timeout=60)) as connection:
            connection.execute(f"ALTER TABLE {old} RENAME TO {new}")
            connection.commit()

    def come_back() -> None:
        while not is_over.wait(0.05):
            if set(installation.settings.artifacts_folder.glob(f"training/*/*/{EVENTS}")) - known:
                break
        rename("taken_away", "experiments")

    rename("experiments", "taken_away")
    helper = threading.Thread(target=come_back)
    helper.start()
    try:
        yield
    finally:
        is_over.set()
        helper.join()


def test_a_training_that_diverges_leaves_what_it_took(installation: Installation, first: ModelRun) -> None:
    """MLflow is away when it starts, and back before it ends."""
    wild = {"function": readings_pipeline.PIPELINE["model"]["function"], "hyperparameters": {"start": 1e30}}
    with _mlflow_away_until_a_training_started(installation):
        result = installation.declared_as(readings_components(pipeline={"model": wild})).train(DAY)
    assert "Diverged" in failure_of(result)
    assert not any(event.is_step_up_for_retry for event in result.all_events)
    installation.platform.tracker.settle()
    kept = materialized(result, TRAINING_SET)[DAY].metadata
    run_id = installation.platform.tracker.find(MODEL, kept["fingerprint"].value)
    assert run_id is not None
    run = mlflow_run(installation, run_id)
    assert run.info.status == "FAILED"
    assert run.data.metrics["worker_hours"] > 0
    assert (run.data.metrics["attempts"], run.data.metrics["gpu_hours"]) == (1, 0)
    attempt = json.loads(run.data.tags["attempt/1"])
    assert (attempt["world_size"], attempt["device"], attempt["from_step"]) == (2, "cpu", 0)
    assert attempt["torch"].partition("+")[0] == json.loads(job_of(installation, kept))["packages"]["torch"]


# Again


def test_a_second_identical_run_finds_the_training_and_the_version(
    installation: Installation, first: ModelRun, again: ModelRun
) -> None:
    for asset, fact in (
        (TRAINING_SET, "fingerprint"),
        (TRAINING_SET, "snapshot"),
        (TRAINING_SET, "lake/commit"),
        (CHECKPOINT, "mlflow/run"),
        (CHECKPOINT, "weights"),
        (EVALUATION, "bundle"),
        (REGISTERED, "version"),
    ):
        assert again.facts[asset][fact] == first.facts[asset][fact]
    assert again.facts[CHECKPOINT]["reused"] is True
    run = mlflow_run(installation, first.facts[CHECKPOINT]["mlflow/run"])
    assert (run.info.status, run.data.tags["dagster_run"]) == ("FINISHED", first.result.run_id)
    starts = [json.loads(tag) for name, tag in sorted(run.data.tags.items()) if name.startswith("start/")]
    assert {one["dagster_run"] for one in starts} >= {first.result.run_id, again.result.run_id}
    client = open_client(installation.platform.tracker.uri)
    for figure in ("worker_hours", "training_seconds"):
        assert len(client.get_metric_history(run.info.run_id, figure)) == 1
    kept = first_branch(installation, first)
    assert again.branches[kept] == first.branches[kept]
    assert again.facts[TRAINING_SET]["lake/branch"] not in again.branches


# Fine-tuning


def test_a_fine_tuning_encodes_columns_as_its_initial_version(
    installation: Installation, first: ModelRun
) -> None:
    """A job that begins with a version has another fingerprint than one that begins with none."""
    last = days(1, start=WINDOW + 1)[0]
    plain, tuned = (frozen(installation, last, init_from) for init_from in (None, f"{MODEL}/1"))
    bundle = bundles_of(installation.platform).open(first.facts[EVALUATION]["bundle"])
    (evaluation, *_) = reversed(releases_of(installation.platform).log.evaluations(MODEL))
    assert tuned.initial == InitialVersion(
        version=f"{MODEL}/1", bundle=bundle.digest, evaluation=evaluation.evaluation_digest
    )
    window = days(WINDOW, start=2)
    assert plain.seen == Days.of(
        [(date.fromisoformat(window[0]), date.fromisoformat(window[TRAIN + VALIDATION - 1]))]
    )
    assert tuned.seen == plain.seen | bundle.facts.lineage.seen
    job, other = tuned.job, plain.job
    assert job.initial_weights == file_sha256(bundle.folder / WEIGHTS)
    assert (plain.initial, other.initial_weights) == (None, "")
    assert [TrainingSet.from_json(one.to_json()) for one in (plain, tuned)] == [plain, tuned]
    assert job.fingerprint != other.fingerprint
    fitted = [FittedState.from_json((Path(one.snapshot) / FITTED).read_text()) for one in (job, other)]
    assert fitted[0] == bundle.facts.fitted != fitted[1]


def test_an_unknown_initial_version_is_refused_before_the_launch(
    installation: Installation, first: ModelRun
) -> None:
    model = readings_pipeline.PIPELINE["model"] | {"init_from": f"{MODEL}/99"}
    result = installation.declared_as(readings_components(pipeline={"model": model})).train(DAY)
    assert f"VersionMissing: {MODEL} has no version 99; it has 1 (1.0.0)" in failure_of(result)
    assert [event.step_key for event in result.get_step_failure_events()] == [f"{MODEL}.snapshot"]


# Champion


def test_a_challenger_that_fails_its_gate_is_rejected_in_a_green_run(challenger: ModelRun) -> None:
    """The challenger is compared with the champion. A rejection is an outcome of the run, not a failure."""
    assert challenger.result.success
    assert list(challenger.facts) == [TRAINING_SET, CHECKPOINT, EVALUATION]
    assert challenger.facts[EVALUATION]["decision"] == "rejected"
    checks = {check.check_name: check for check in challenger.result.get_asset_check_evaluations()}
    assert not checks["gate"].passed
    assert checks["gate"].severity == dg.AssetCheckSeverity.WARN


def test_an_observation_says_which_rule_kept_it_from_being_registered(challenger: ModelRun) -> None:
    (why,) = [
        event.asset_observation_data.asset_observation
        for event in challenger.result.get_asset_observation_events()
        if event.asset_key == key_of(REGISTERED)
    ]
    assert why.partition == NEXT_DAY
    said = why.description or ""
    assert said.startswith("Not registered: Rejected: ")
    assert "“far better than before” on all rows" in said
    assert "would pass" in said
    (row,) = [record.data for record in why.metadata["failed"].records]
    assert row["asks"].startswith("rmse > 30")


def test_numbers_stored_with_the_champion_change_no_verdict(challenger: ModelRun, tampered: ModelRun) -> None:
    """Each run measures latency anew."""
    own = dict.fromkeys(("evaluation", "report", "report_file", "summary", *SERVING_NAMES), "")
    assert tampered.facts[EVALUATION] | own == challenger.facts[EVALUATION] | own
    without_latency = [
        re.sub(r"#+ Serving\n.*?(?=\n#|\Z)", "", run.facts[EVALUATION]["summary"], flags=re.DOTALL)
        for run in (tampered, challenger)
    ]
    assert without_latency[0] == without_latency[1]
    assert tampered.facts[CHECKPOINT]["reused"] is True


def test_noise_for_the_champions_weights_changes_the_verdict(
    tampered: ModelRun, beside_noise: ModelRun
) -> None:
    assert tampered.facts[EVALUATION]["decision"] == "rejected"
    assert beside_noise.facts[EVALUATION]["decision"] == "blessed"
    assert beside_noise.facts[REGISTERED]["version"] == 3
    assert beside_noise.facts[CHECKPOINT]["weights"] == tampered.facts[CHECKPOINT]["weights"]


def test_what_was_in_production_keeps_its_evaluation_and_can_come_back(
    installation: Installation, again: ModelRun, beside_noise: ModelRun
) -> None:
    """A second run of its partition meets a champion that trained on the holdout. Its evaluation gets a new folder."""
    releases = releases_of(installation.platform)
    report = Path(again.facts[EVALUATION]["report_file"].removeprefix("file://"))
    before = {path.name: path.read_bytes() for path in report.parent.iterdir()}
    promote(
        releases,
        MODEL,
        beside_noise.facts[REGISTERED]["version"],
        by=Person.unchecked("ada"),
        reason="of the next day",
    )
    earlier = train(installation, DAY)

    assert earlier.facts[EVALUATION]["decision"] == "undecided"
    assert "the champion has seen rows of this holdout" in earlier.facts[EVALUATION]["why"]
    assert earlier.facts[EVALUATION]["report_file"] != again.facts[EVALUATION]["report_file"]
    assert {path.name: path.read_bytes() for path in report.parent.iterdir()} == before
    rows = {one.name: one for one in releases.log.evaluations(MODEL)}
    kept, newest = (rows[one.facts[EVALUATION]["evaluation"]] for one in (again, earlier))
    for row in (kept, newest):
        assert hashlib.sha256(_json_beside(row.report)).hexdigest() == row.evaluation_digest

    shown = {name: earlier.facts[REGISTERED][name] for name in ("version", "gate", "evaluation", "report")}
    assert shown == {name: again.facts[REGISTERED][name] for name in shown}
    assert "to promote it again" in earlier.facts[REGISTERED]["next"]
    tags = registry_of(installation.platform).version(MODEL, 1).tags
    assert (tags["gate_status"], tags["evaluation"]) == ("blessed", kept.name)
    assert (
        promote(releases, MODEL, 1, by=Person.unchecked("ada"), reason="back").evaluation_digest
        == kept.evaluation_digest
    )


def _json_beside(report: str) -> bytes:
    return Path(report.removeprefix("file://")).with_name("evaluation.json").read_bytes()


def test_a_champion_that_cannot_score_todays_rows_can_be_demoted(
    installation: Installation, first: ModelRun, beside_noise: ModelRun
) -> None:
    """The run succeeds and says so. After the demotion the next model is evaluated without a champion."""
    releases = releases_of(installation.platform)
    renamed = {"made_yesterday": "made_last_week"}
    stranger = randomize_weights(installation, first.facts[EVALUATION]["bundle"], DAY, renamed=renamed)
    record_evaluation(
        installation.platform.ledger,
        stranger,
        partition=DAY,
        trained_on=trained_on_of(installation),
        gates=releases.log.evaluations(MODEL)[0].gates,
    )
    version = register(releases, stranger, run_id=first.facts[CHECKPOINT]["mlflow/run"], links={})
    promote(
        releases, MODEL, version.number, by=Person.unchecked("eve"), reason="reads a column that was dropped"
    )

    found = train(installation, NEXT_DAY).facts[EVALUATION]
    assert found["why"] == "Undecided: the champion cannot score these rows."
    assert (
        "The challenger is not compared with the champion: columns ['made_last_week'] are missing"
        in found["summary"]
    )
    row = releases.log.evaluations(MODEL)[-1]
    assert (row.status, row.champion_digest) == ("undecided", stranger.digest)
    demote(releases, MODEL, by=Person.unchecked("ada"), reason="nobody can compare with it")
    again = train(installation, NEXT_DAY).facts
    assert again[EVALUATION]["decision"] == "blessed"
    assert releases.log.evaluations(MODEL)[-1].champion_digest is None

    number = int(str(again[REGISTERED]["version"]))
    pair = [registry_of(installation.platform).version(MODEL, one) for one in (version.number, number)]
    spec = TrainingPipelineSpec.model_validate(readings_pipeline.PIPELINE)
    page = difference_page(compare_versions(spec, installation.platform, *pair)).to_markdown()
    assert f"**Not comparable: Version {version.number} (" in page
    assert "columns ['made_last_week'] are missing" in page
    assert "* made_yesterday (numeric) is new." in page
    assert "* 1 partition came (" in page

    # Without the bundle, the report knows the same. Without both, ledger and lake still know the rows.
    bundles = bundles_of(installation.platform)
    digest = str(again[EVALUATION]["bundle"])
    report = recorded_report(installation.platform, releases.log.evaluations(MODEL)[-1])
    assert KnownFacts.of_report(report) == KnownFacts.of_bundle(bundles.open(digest))
    with without(bundles.root / digest):
        page = difference_page(compare_versions(spec, installation.platform, *pair)).to_markdown()
        assert f"**Not comparable: The bundle of version {number} (" in page
        assert f"is lost: no bundle {digest[:12]}" in page
        assert "its columns and settings are those of its report" in page
        assert "* made_yesterday (numeric) is new." in page
        assert "## Metrics of their reports" in page
        assert re.search(r"\| rmse +\| – +\| \d", page)
        assert "* 1 partition came (" in page
    with without(bundles.root / stranger.digest):
        page = difference_page(compare_versions(spec, installation.platform, *pair)).to_markdown()
        assert "nor has it a report" in page
        assert re.search(r"\| holdout +\| unknown +\| \d", page)
        assert "* 1 partition came (" in page


@contextmanager
def without(folder: Path) -> Generator[None]:
    """Hide a folder for the block."""
    hidden = folder.with_name(f"{folder.name}-hidden")
    folder.rename(hidden)
    yield
    hidden.rename(folder)


# Staleness


def test_stale_inputs_are_named_and_trained_on_as_main_holds_them(
    installation: Installation, again: ModelRun, beside_noise: ModelRun
) -> None:
    changed, after = days(WINDOW + 2)[4:6]
    readings_pipeline.SOURCE.spoiled[changed] = lambda rows: rows.with_columns(pl.col("made") + 1)
    assert installation.run(READINGS, partition=changed).success
    stale = train(installation, DAY)
    (check,) = [
        one for one in stale.result.get_asset_check_evaluations() if one.check_name == "inputs_current"
    ]
    assert not check.passed
    assert check.severity == dg.AssetCheckSeverity.WARN
    named = {record.data["partition"]: record.data["why"] for record in check.metadata["stale"].records}
    assert named == dict.fromkeys((changed, after), f"{READINGS} {changed} changed")
    assert stale.facts[TRAINING_SET]["snapshot"] == again.facts[TRAINING_SET]["snapshot"]


def test_nothing_a_run_wrote_holds_a_secret_of_the_settings(
    installation: Installation, first: ModelRun
) -> None:
    """Files at home (MLflow, ledger, lake, reports, job folders), commits, and events with their metadata."""
    assert PLANTED in installation.settings.ui_url.reveal()
    files = [path for path in installation.settings.home.rglob("*") if path.is_file()]
    assert {"mlflow.db", "ledger.db", "refs.db", "job.json"} <= {path.name for path in files}
    assert [str(path) for path in files if PLANTED.encode() in path.read_bytes()] == []
    assert PLANTED not in repr(list(installation.platform.lake.log("main", limit=1000)))
    events = [
        str(one)
        for run in installation.instance.get_runs()
        for one in installation.instance.all_logs(run.run_id)
    ]
    assert len(events) > 50
    assert [one for one in events if PLANTED in one] == []
    assert any("http://ui.test/runs/" in path.read_text() for path in files if path.suffix == ".html")


def test_the_page_of_a_day_names_its_users(installation: Installation, challenger: ModelRun) -> None:
    """The day is in the window of both versions. A test before this one may have replaced the first in production."""
    day, main = days(3)[2], installation.main
    used = users_of(installation.platform, main, READINGS, day)
    assert used.tables[FEATURES] == tuple(days(2, start=2))
    found = {one.version: one for one in used.trainings}
    assert found["1.0.0"].stage in ("production", "replaced")
    assert found["1.0.0"].has_this_content
    assert (found["1.0.0"].first, found["1.0.0"].last) == (days(2)[1], DAY)
    assert len(found) >= 2
    of_next = users_of(installation.platform, main, READINGS, NEXT_DAY).trainings
    assert {one.last for one in of_next} == {NEXT_DAY}
    said = partition_page(installation.platform, READINGS, day, draw=False).to_markdown()
    assert f"{MODEL} 1.0.0 ({found['1.0.0'].stage})" in said
