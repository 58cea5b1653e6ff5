"""Requests against the feature table as a check: the sensor requests it for each ended partition, and verdicts stay."""

from typing import Any

import dagster as dg
import pytest
from dagster._core.execution.execute_in_process_result import ExecuteInProcessResult
from pydantic import ValidationError

from ml_assets.components.metadata import declared_tables
from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets_tests.components.canary_home import DAYS, begun, log_features
from ml_assets_tests.components.installation import QUIET, Installation, readings_components
from ml_assets_tests.components.readings_pipeline import MODEL, PIPELINE
from resources.ledger import VerdictRow

CHECK = dg.AssetCheckKey(dg.AssetKey([MODEL, "production"]), "served_skew")


def declared(installation: Installation, **rule: Any) -> Installation:
    return installation.declared_as(readings_components(pipeline={"served_skew": rule}))


def tick(installation: Installation) -> Any:
    resources = {"platform": installation.platform, "tables": declared_tables(installation.defs)}
    sensor = installation.defs.get_repository_def().get_sensor_def(f"{MODEL}_served_skew")
    cursor = installation.cursors.get(sensor.name)
    answer: Any = sensor(
        dg.build_sensor_context(instance=installation.instance, resources=resources, cursor=cursor)
    )
    installation.cursors[sensor.name] = answer.cursor
    return answer


def run(installation: Installation) -> ExecuteInProcessResult:
    job = installation.defs.resolve_implicit_global_asset_job_def().get_subset(
        asset_selection=set(), asset_check_selection={CHECK}
    )
    return job.execute_in_process(run_config=QUIET, instance=installation.instance)


def checked(installation: Installation) -> dg.AssetCheckEvaluation:
    """Run the check that the sensor requests."""
    (request,) = tick(installation).run_requests
    assert request.asset_check_keys == [CHECK]
    (check,) = run(installation).get_asset_check_evaluations()
    return check


def verdicts(installation: Installation) -> dict[str, VerdictRow]:
    return installation.platform.ledger.newest_verdicts(f"{MODEL}/served_skew")


def drill(row: dict[str, Any]) -> dict[str, Any]:
    return row | ({"load": row["load"] + 0.25} if row["machine"] == "drill" else {})


def test_each_ended_partition_is_compared_once_without_being_asked(tmp_path: Any) -> None:
    """The next partition and later requests make a partition due again. Its verdict outlives the log."""
    installation, bundle = begun(tmp_path)
    installation = declared(installation)
    assert "all requests that can be compared" in tick(installation).skip_reason.skip_message
    log_features(installation, bundle, DAYS[0])
    check = checked(installation)
    assert (check.passed, check.description) == (
        True,
        f"{DAYS[0]}: 48 rows compared, no input differs in more rows than allowed",
    )
    assert tick(installation).run_requests == []

    log_features(installation, bundle, DAYS[1], drill)
    check = checked(installation)
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert check.description == f"{DAYS[1]}: other values in load ({DAYS[1]}); 48 rows compared"
    assert {key: row.status for key, row in verdicts(installation).items()} == {
        DAYS[0]: "passed",
        DAYS[1]: "warned",
    }
    assert "12 of 48 rows" in verdicts(installation)[DAYS[1]].body_json
    # A click without anything new shows the newest verdict again.
    (again,) = run(installation).get_asset_check_evaluations()
    assert (again.passed, verdicts(installation)[DAYS[1]].number) == (False, 1)


def test_a_changed_policy_compares_again_and_decides(tmp_path: Any) -> None:
    installation, bundle = begun(tmp_path)
    log_features(installation, bundle, DAYS[0], drill)
    red = checked(declared(installation, severity="error"))
    assert (red.passed, red.severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert not checked(declared(installation, at_most=0.2)).passed
    assert checked(declared(installation, at_most=0.2, columns={"load": 0.25})).passed
    assert checked(declared(installation, ignore=["load"])).passed
    assert [
        row.status
        for row in installation.platform.ledger.histories(f"{MODEL}/served_skew", [DAYS[0]])[DAYS[0]]
    ] == [
        "rejected",
        "warned",
        "passed",
        "passed",
    ]


def test_requests_without_a_row_in_the_table_are_no_success(tmp_path: Any) -> None:
    installation, bundle = begun(tmp_path)
    log_features(installation, bundle, DAYS[0], lambda row: {"load": row["load"]})
    check = checked(declared(installation))
    assert not check.passed
    assert "no row to compare" in (check.description or "")
    assert "do not name at, machine" in verdicts(installation)[DAYS[0]].body_json


@pytest.mark.parametrize(
    ("rule", "at", "said"),
    [
        ({"at_most": 1}, "served_skew.at_most", "less than 1"),
        ({"columns": {"lod": 0.1}}, "served_skew.columns.lod", "did you mean 'load'?"),
        ({"ignore": ["made"]}, "served_skew.ignore.0", "'made' is not an input of the model"),
    ],
)
def test_a_bad_policy_is_refused_at_its_key(rule: dict[str, Any], at: str, said: str) -> None:
    with pytest.raises(ValidationError) as refused:
        TrainingPipelineSpec.model_validate(PIPELINE | {"served_skew": rule})
    (error,) = refused.value.errors()
    assert (".".join(map(str, error["loc"])), said in error["msg"]) == (at, True)
