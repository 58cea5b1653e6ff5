"""E1 on a real MLflow server: everything about a training is in its run, changed by nobody, lost by no outage."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow.exceptions import MlflowException

from ml_assets.foundation.links import report_name
from ml_assets_tests.servers.installed.conftest import DAY, Installed
from ml_assets_tests.servers.running_servers import RunningServers
from resources.tracking.mlflow_client import REQUEST_SECONDS, TrackerUnavailable, open_client
from resources.tracking.tracker import RunFacts, Tracker


@pytest.fixture
def tracker(installed: Installed) -> Tracker:
    return installed.installation.platform.tracker


@pytest.fixture
def facts(installed: Installed, request: pytest.FixtureRequest) -> RunFacts:
    """Facts of a training that only this test has."""
    own = f"{installed.model}-{request.node.name}-{time.time_ns()}"
    return RunFacts(experiment=installed.model, fingerprint=own, name=DAY, author="ada", params={"lr": 0.1})


def _run(installed: Installed) -> Any:
    run_id = installed.facts["checkpoint"]["mlflow/run"]
    return open_client(installed.settings.resolved_tracking_uri.reveal()).get_run(run_id)


def _steps(tracker: Tracker, run_id: str, metric: str) -> list[int]:
    return [point.step for point in open_client(tracker.uri).get_metric_history(run_id, metric)]


def test_run_says_with_what_and_from_what_it_was_trained(installed: Installed) -> None:
    run = _run(installed)
    assert (run.info.status, run.info.run_name, run.data.tags["mlflow.user"]) == ("FINISHED", DAY, "ada")
    params, tags = run.data.params, run.data.tags
    assert {"training.learning_rate", "training.global_batch", "seed", "model_function"} <= params.keys()
    known = {
        "fingerprint": installed.facts["training_set"]["fingerprint"],
        "partition": DAY,
        "lake_commit": installed.facts["training_set"]["lake/commit"],
        "snapshot_digest": installed.facts["training_set"]["snapshot"],
        "schema_hash": installed.facts["training_set"]["schema_hash"],
        "bundle_digest": installed.facts["evaluation"]["bundle"],
        "gate_status": installed.facts["evaluation"]["decision"],
        "model_version": f"{installed.model}/{installed.facts['registered_model']['version']}",
    }
    assert {name: tags[name] for name in known} == known
    assert {
        "mlflow.source.git.commit",
        "git_dirty",
        "lock_sha256",
        "torch",
        "python",
        "machine",
    } <= tags.keys()
    assert {"code_version", "world_size", "dagster_run", "dagster_url", "dataset_digest"} <= tags.keys()
    (dataset,) = run.inputs.dataset_inputs
    assert known["snapshot_digest"].startswith(dataset.dataset.digest)


def test_run_has_metrics_by_step_and_epoch_and_what_it_took(installed: Installed, tracker: Tracker) -> None:
    run = _run(installed)
    by_step = _steps(tracker, run.info.run_id, "loss")
    by_epoch = _steps(tracker, run.info.run_id, "validation_loss")
    assert len(by_step) >= 2
    assert len(by_epoch) >= 2
    assert by_step == sorted(set(by_step))
    metrics = run.data.metrics
    in_the_loop = metrics["training_seconds"] / 3600 * 2
    assert in_the_loop <= metrics["worker_hours"] < in_the_loop + 2 * 60 / 3600
    assert metrics["attempts"] == 1
    assert "holdout_rmse" in metrics


def test_files_lie_under_addresses_that_can_be_told_beforehand(installed: Installed) -> None:
    run, home = _run(installed), installed.settings.artifacts_url
    assert run.info.artifact_uri == f"{home}/mlflow/{installed.model}/{run.info.run_id}/artifacts"
    fingerprint = run.data.tags["fingerprint"]
    assert run.data.tags["artifacts"] == f"{home}/training/{installed.model}/{fingerprint[:16]}"
    client = open_client(installed.settings.resolved_tracking_uri.reveal())
    folder = f"evaluations/{installed.facts['evaluation']['evaluation']}"
    report = {file.path for file in client.list_artifacts(run.info.run_id, folder)}
    files = {"report.html", "model_card.html", "model_card.md", "evaluation.json"}
    assert report == {f"{folder}/{file}" for file in files}
    name = report_name(installed.model, DAY, installed.facts["evaluation"]["evaluation"])
    assert installed.installation.platform.artifacts.files(name).keys() == files


def test_same_training_again_is_the_same_run_with_the_same_parameters(installed: Installed) -> None:
    before = _run(installed)
    assert installed.train_again()["checkpoint"]["mlflow/run"] == before.info.run_id
    after = _run(installed)
    assert after.data.params == before.data.params
    client = open_client(installed.settings.resolved_tracking_uri.reveal())
    with pytest.raises(MlflowException, match=r"Changing param values"):
        client.log_param(before.info.run_id, "seed", "other")
    experiment = client.get_experiment_by_name(installed.model).experiment_id
    found = client.search_runs([experiment], f"tags.fingerprint = '{before.data.tags['fingerprint']}'")
    assert len(found) == 1


def test_starting_at_once_gives_one_run(tracker: Tracker, facts: RunFacts) -> None:
    def start(_: int) -> str:
        with tracker.start(facts) as run:
            return run.run_id

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(start, range(4)))) == 1


def test_parameters_of_a_later_start_change_nothing(tracker: Tracker, facts: RunFacts) -> None:
    with tracker.start(facts) as first:
        pass
    with tracker.start(replace(facts, params={"lr": 0.2, "more": 1})) as second:
        assert second.run_id == first.run_id
    assert open_client(tracker.uri).get_run(first.run_id).data.params == {"lr": "0.1", "more": "1"}


def test_outage_in_the_middle_loses_nothing_and_doubles_nothing(
    tracker: Tracker, facts: RunFacts, servers: RunningServers
) -> None:
    with tracker.start(facts) as run:
        for step in range(300):
            run.log({"loss": 1.0 / (step + 1)}, step)
            if step == 100:
                time.sleep(1.0)  # two deliveries pass
                servers.kill("mlflow")
    assert list((tracker._folder / "spool").glob(f"{run.run_id}-*.jsonl"))
    servers.restart("mlflow")
    tracker.settle()
    assert _steps(tracker, run.run_id, "loss") == list(range(300))
    assert open_client(tracker.uri).get_run(run.run_id).info.status == "FINISHED"


def test_logging_never_waits_for_a_server_that_hangs(
    tracker: Tracker, facts: RunFacts, servers: RunningServers
) -> None:
    with tracker.start(facts) as run:
        servers.freeze("mlflow")
        worst = 0.0
        for step in range(200):
            began = time.perf_counter()
            run.log({"loss": 1.0}, step)
            worst = max(worst, time.perf_counter() - began)
            time.sleep(0.005)
        servers.thaw("mlflow")
    assert worst < REQUEST_SECONDS  # put aside now and then; one that waited would take the client's timeout
    tracker.settle()
    assert _steps(tracker, run.run_id, "loss") == list(range(200))


def test_server_that_stays_away_is_named_with_what_helps(
    installed: Installed, facts: RunFacts, servers: RunningServers, tmp_path: Path
) -> None:
    servers.kill("mlflow")
    away = Tracker(installed.settings.resolved_tracking_uri.reveal(), tmp_path)
    with away.start(facts) as run:
        run.log({"loss": 0.5}, 1)
    with pytest.raises(TrackerUnavailable, match="ML_ASSETS_TRACKING_URI"):
        _ = run.run_id
    servers.restart("mlflow")
    assert _steps(away, run.run_id, "loss") == [1]
