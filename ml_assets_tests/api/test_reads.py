"""Routes that change nothing: their answers are those of the context, the ledger and MLflow."""

from dataclasses import asdict
from datetime import date
from typing import Any

import dagster as dg
from dagster._core.events import DagsterEvent, StepMaterializationData

from ml_assets.data.tables.declared import NOTHING_DECLARED
from ml_assets.data.tables.publish.publish import publish
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.spec import Incoming, PublishingRun
from ml_assets.model.steps.goodput import Goodput
from ml_assets.model.steps.usage import UsageRecord, UsedAttempt, UsedLaunch, usage_file
from ml_assets_tests.api.conftest import ServedApi
from ml_assets_tests.api.test_frame import problem
from ml_assets_tests.release.conftest import example_rows
from ml_assets_tests.serving.released import register
from ml_assets_tests.tables import orders_table
from resources.job.reserved import Reserved
from resources.tracking.mlflow_client import open_client
from resources.tracking.tracker import RunFacts

TRAINING_SET = ("snapshot_digest", "schema_hash", "split_config_hash")


def every(api: ServedApi, path: str, limit: int = 1) -> list[dict[str, Any]]:
    """Return all items of a list, page by page."""
    found: list[dict[str, Any]] = []
    cursor: str | None = ""
    while cursor is not None:
        page = api.ask(
            "viewer", "GET", f"{path}{'&' if '?' in path else '?'}limit={limit}&cursor={cursor}"
        ).json()
        assert 1 <= len(page["items"]) <= limit
        found += page["items"]
        cursor = page["next"]
    return found


def test_a_plan_is_the_plan_of_the_command(api: ServedApi) -> None:
    told = api.ask("viewer", "GET", "/plan?model=store_demand&partition=2024-01-08").json()
    plan = api.context.plan("store_demand", "2024-01-08")
    assert told["to_build"] == {name: [one.typed for one in spans] for name, spans in plan.to_build.items()}
    assert (told["partition"], told["commit"], told["ready"], told["done"]) == (
        "2024-01-08",
        plan.commit,
        False,
        False,
    )
    assert told["explanation"] == plan.validation.explain()
    assert (told["expected"]["trainings"], told["expected"]["hours"]) == (0, None)
    mistyped = api.ask("viewer", "GET", "/plan?model=store_demand&partion=2024-01-08")
    assert problem(mistyped) == (422, "unknown_parameter")
    assert "did you mean 'partition'?" in mistyped.json()["detail"]
    nearest = api.ask("viewer", "GET", "/plan?model=store_deman")
    assert problem(nearest) == (404, "not_found")
    assert "'store_demand'" in nearest.json()["detail"]


def test_pages_of_models_join_to_all_models(api: ServedApi) -> None:
    names = [one["name"] for one in every(api, "/models")]
    assert names == sorted(api.context.project.declared.pipelines())


def test_versions_have_stage_and_evaluation(api: ServedApi) -> None:
    register(api.platform, example_rows(), "8")
    versions = every(api, "/models/store_demand/versions", 2)
    assert [one["version"] for one in versions] == list(range(1, len(versions) + 1))
    newest = versions[-1]
    shown = api.context.show("store_demand", newest["version"])
    told = api.ask("viewer", "GET", f"/models/store_demand/versions/{newest['version']}").json()
    assert newest.items() <= told.items()
    assert (told["stage"], told["status"]) == ("staging", "blessed")
    assert told["evaluation"] == shown.evaluation.evaluation_digest
    assert told["lake_commit"] == shown.evaluation.trained_on.commit
    assert {told[name] for name in TRAINING_SET} == {""}  # no run of Dagster made this version
    missing = api.ask("viewer", "GET", "/models/store_demand/versions/999")
    assert problem(missing) == (404, "version_missing")
    assert problem(api.ask("viewer", "GET", "/models/tiny_text/versions/1")) == (404, "not_found")
    assert api.ask("viewer", "GET", "/models/tiny_text/versions").json() == {"items": [], "next": None}


def test_a_version_names_the_training_set_that_its_run_froze(api: ServedApi) -> None:
    row = api.context.show("store_demand", 1).evaluation
    instance = api.context.project.instance
    event = DagsterEvent(
        event_type_value=dg.DagsterEventType.ASSET_MATERIALIZATION.value,
        job_name="train_store_demand",
        event_specific_data=StepMaterializationData(
            dg.AssetMaterialization(
                dg.AssetKey(["store_demand", "training_set"]),
                partition=row.partition,
                metadata={"snapshot": "5" * 64, "schema_hash": "6" * 64, "split_config_hash": "7" * 64},
            )
        ),
    )
    instance.report_dagster_event(event, row.run_id)
    try:
        told = api.ask("viewer", "GET", "/models/store_demand/versions/1").json()
    finally:
        instance.event_log_storage.delete_events(row.run_id)
    assert [told[name] for name in TRAINING_SET] == ["5" * 64, "6" * 64, "7" * 64]


def test_commits_of_a_table_come_page_by_page(api: ServedApi) -> None:
    spec, platform = orders_table.spec(), api.platform
    for number, (key, frame) in enumerate(orders_table.days(3).items()):
        some = [Incoming(key=key, data=frame.head(frame.height - 1 - number))]
        run = PublishingRun(run_id=f"again{number}", url="http://127.0.0.1:3000/runs/again")
        publish(platform.lake, platform.ledger, spec, some, run, NOTHING_DECLARED)
    commits = every(api, "/datasets/orders/versions")
    assert [one["commit"] for one in commits] == [
        one.commit for one in api.context.data.log(table="datasets/orders")
    ]
    assert [one["run_id"] for one in commits[:3]] == ["again2", "again1", "again0"]
    for one in commits[:3]:
        reader = TableReader(platform.lake, one["commit"])
        (manifest,) = reader.manifests("datasets/orders", one["partitions"]).values()
        told = one["rows"], one["bytes"], one["schema_hash"]
        assert told == (manifest.rows, manifest.size, manifest.schema_hash)
    assert commits[0]["rows"] > 0
    assert problem(api.ask("viewer", "GET", "/datasets/order/versions")) == (404, "not_found")


def test_a_verdict_has_its_findings_without_rows(api: ServedApi) -> None:
    (key,) = orders_table.keys(1)
    told = api.ask("viewer", "GET", f"/datasets/orders/partitions/{key}").json()
    row = api.platform.ledger.newest_verdicts("datasets/orders")[key]
    assert (told["status"], told["number"], told["rows"]) == (row.status, row.number, row.rows)
    assert all("examples" not in one for one in told["findings"])
    assert problem(api.ask("viewer", "GET", "/datasets/sales/partitions/2024-01-01")) == (404, "not_found")
    wrong = api.ask("viewer", "GET", "/datasets/sale/partitions/2024-01-01")
    assert "'datasets/sales'" in wrong.json()["detail"]


def test_experiments_are_filtered_and_paged(api: ServedApi) -> None:
    tracker = api.platform.tracker
    for number in range(5):
        facts = RunFacts(
            experiment="churn",
            fingerprint=f"{number}" * 64,
            name=f"2024-01-0{number + 1}",
            author="ada",
            params={"seed": number},
            tags={"lake_commit": "c" * 64, "mlflow.source.git.commit": "a" * 40},
            dataset_name="features/churn",
            dataset_digest="d" * 64,
        )
        with tracker.start(facts) as run:
            run.log({"loss": number / 10, "wild": float("nan")}, step=1)
    runs = every(api, "/experiments/churn/runs", 2)
    assert [one["name"] for one in runs] == [f"2024-01-0{number}" for number in (5, 4, 3, 2, 1)]
    first_page = api.ask("viewer", "GET", "/experiments/churn/runs?limit=2").json()
    with tracker.start(RunFacts(experiment="churn", fingerprint="9" * 64, name="2024-02-01", author="ada")):
        cursor = first_page["next"]
        second = api.ask("viewer", "GET", f"/experiments/churn/runs?limit=2&cursor={cursor}").json()
    assert [one["id"] for one in second["items"]] == [one["id"] for one in runs[2:4]]
    low = every(api, "/experiments/churn/runs?filter=metrics.loss < 0.15")
    assert [one["metrics"] for one in low] == [{"loss": 0.1, "wild": None}, {"loss": 0.0, "wild": None}]
    assert {one["status"] for one in runs} == {"FINISHED"}
    (client, first) = open_client(api.platform.settings.resolved_tracking_uri.reveal()), runs[0]["id"]
    client.log_text(first, "a figure", "reports/figure.txt")
    told = api.ask("viewer", "GET", f"/experiments/churn/runs/{first}").json()
    assert (told["params"], told["artifacts"]) == ({"seed": "4"}, {"reports/figure.txt": 8})
    assert (told["data_version"], told["git_commit"], told["lake_commit"]) == ("d" * 64, "a" * 40, "c" * 64)
    assert problem(api.ask("viewer", "GET", f"/experiments/store_demand/runs/{first}")) == (
        404,
        "tracked_missing",
    )
    assert problem(api.ask("viewer", "GET", "/experiments/nothing/runs")) == (404, "tracked_missing")
    assert problem(api.ask("viewer", "GET", "/experiments/churn/runs?filter=loss")) == (
        422,
        "tracker_refused",
    )


def test_costs_are_those_of_the_command(api: ServedApi) -> None:
    reading = Reserved(
        job="job", at=7200.0, began=0.0, places=0, place_seconds=7200.0, cores=2.0, memory_bytes=2**30, gpus=4
    )
    attempt = UsedAttempt(reading=reading, gpus=4, gpu="NVIDIA H200", state="diverged")
    launch = UsedLaunch(id="a", run_id="run", author="ada", began=0.0, at=7200.0, state="diverged")
    record = UsageRecord(
        environment="local",
        env="",
        model="store_demand",
        partition="2024-01-08",
        fingerprint="f" * 64,
        launches=(launch,),
        attempts=(attempt,),
        goodput=Goodput(compute=7200.0),
    )
    with api.platform.artifacts.create(*usage_file(record.model, record.fingerprint)) as stream:
        stream.write(record.to_json().encode())
    told = api.ask("viewer", "GET", "/costs?by=status&since=1970-01-01").json()
    found = api.context.costs("status", date(1970, 1, 1))
    assert told["rows"] == [
        {"name": one.name, "trainings": one.trainings, "spent": asdict(one.spent)} for one in found.rows
    ]
    assert told["rows"][0]["spent"]["gpu_hours"] == 8.0
    assert told["total"]["spent"]["money"] is None
    scheduled = api.ask("viewer", "GET", "/scheduled-trainings?since=1970-01-01").json()
    assert scheduled == {"since": "1970-01-01", "pipelines": []}
    assert problem(api.ask("viewer", "GET", "/costs?by=colour")) == (422, "invalid_request")
    unknown = api.ask("viewer", "GET", "/training-runs/0d3c5d9e-4f7e-4c0e-9d0a-3f1f5a1c2b3d/costs")
    assert problem(unknown) == (404, "not_found")
