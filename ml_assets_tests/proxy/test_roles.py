"""Each mutation of Dagster's schema, with each role, through the running proxy in front of a real webserver."""

import json
import re
import time
from typing import Any

import httpx
import pytest
from graphql import (
    GraphQLArgument,
    GraphQLEnumType,
    GraphQLInputObjectType,
    GraphQLList,
    GraphQLNonNull,
    GraphQLObjectType,
    GraphQLUnionType,
    get_named_type,
)

from ml_assets.extras.governance.proxy.documents import dagster_schema
from ml_assets.extras.governance.proxy.rules import LAUNCHES, MUTATIONS, PATHS, ROLES, may
from ml_assets.foundation.checkout import ROOT
from ml_assets_tests.proxy.conftest import WHERE, GuardedDagster
from resources.ledger import LedgerUnavailable

SCHEMA = dagster_schema()
assert SCHEMA.mutation_type is not None
FIELDS = SCHEMA.mutation_type.fields


def made_up(of: Any) -> Any:
    """Return a value of an input type, of nothing that exists."""
    if isinstance(of, GraphQLNonNull):
        return made_up(of.of_type)
    if isinstance(of, GraphQLList):
        return [made_up(of.of_type)]
    if isinstance(of, GraphQLEnumType):
        return next(iter(of.values))
    if isinstance(of, GraphQLInputObjectType):
        needed = {name: one.type for name, one in of.fields.items() if isinstance(one.type, GraphQLNonNull)}
        return {name: made_up(one) for name, one in needed.items()}
    return {"Int": 1, "Float": 1.0, "Boolean": False}.get(of.name, "none-such")


def call(name: str) -> tuple[str, dict[str, Any]]:
    """Return a document that calls a mutation, and its variables."""
    field = FIELDS[name]
    needed: dict[str, GraphQLArgument] = {
        one: of
        for one, of in field.args.items()
        if isinstance(of.type, GraphQLNonNull) or one.endswith("Params")
    }
    kinds = ", ".join(f"${one}: {of.type}" for one, of in needed.items())
    given = ", ".join(f"{one}: ${one}" for one in needed)
    has_parts = isinstance(get_named_type(field.type), GraphQLObjectType | GraphQLUnionType)
    document = f"mutation{f'({kinds})' * bool(needed)} {{ {name}{f'({given})' * bool(needed)} "
    return document + f"{'{ __typename }' * has_parts} }}", {
        one: made_up(of.type) for one, of in needed.items()
    }


def refusal(answer: dict[str, Any]) -> str:
    """Return the proxy's reason, empty if the webserver answered."""
    said = [one["message"] for one in answer.get("errors", ())]
    return said[0] if said and "An administrator can change that" in said[0] else ""


def test_the_table_has_each_mutation_of_the_schema() -> None:
    assert MUTATIONS.keys() == FIELDS.keys()


def test_the_docs_have_the_table() -> None:
    page = (ROOT / "docs" / "how-to" / "sign-in.md").read_text()
    for role in ROLES:
        [row] = re.findall(rf"^\| {role} \| (.*) \|$", page, re.MULTILINE)
        mutations = [name for name, rule in MUTATIONS.items() if rule.role == role]
        assert re.findall(r"`(/?\w+)`", row) == mutations + [
            f"/{one}" for one, rule in PATHS.items() if rule.role == role
        ]


def test_each_mutation_that_launches_is_recorded() -> None:
    """Those whose answer may have a launched run or backfill."""

    def leads_to_a_launch(of: Any) -> bool:
        named = get_named_type(of)
        types = named.types if isinstance(named, GraphQLUnionType) else [named]
        names = {one.name for one in types}
        return bool(names & {"LaunchRunSuccess", "LaunchBackfillSuccess", "LaunchMultipleRunsResult"})

    assert {name for name, field in FIELDS.items() if leads_to_a_launch(field.type)} == LAUNCHES.keys()


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_needs_its_role(guarded: GuardedDagster, name: str) -> None:
    document, variables = call(name)
    allowed = {role for role in ROLES if not refusal(guarded.post(role, document, variables))}
    assert allowed == {role for role in ROLES if may(role, MUTATIONS[name].role)}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_role_of_one_group_touches_nothing_unclear(guarded: GuardedDagster, name: str) -> None:
    document, variables = call(name)
    answer = guarded.post("flyer", document, variables)
    if MUTATIONS[name].touches == "nothing":
        assert "errors" not in answer, answer
        return
    [error] = answer["errors"]
    told = ("limited to the group flights", "needs the role", "did not say which assets")
    assert any(one in error["message"] for one in told), answer


@pytest.mark.parametrize("path", ["report_asset_materialization/departures", "report_asset_check/departures",
                                  "report_asset_observation/departures", "download_debug/none-such",
                                  "notebook", "dagit/notebook"])  # fmt: skip
def test_a_path_needs_its_role(guarded: GuardedDagster, path: str) -> None:
    rule = PATHS[path.split("/")[0]]
    allowed: set[str] = set()
    for role in (*ROLES, "flyer"):
        body = {"partition": "monday", "check_name": "not_empty", "passed": True, "data_version": "1"}
        address, content = f"{guarded.address}/{path}", body if rule.method == "POST" else None
        answer = httpx.request(rule.method, address, headers=guarded.proof(role), json=content, timeout=60)
        if "needs the role" not in answer.text and "limited to groups" not in answer.text:
            allowed.add(role)
        else:
            assert answer.status_code == 403
    assert allowed == {role for role in ROLES if may(role, rule.role)}
    assert httpx.post(f"{guarded.address}/{path}").status_code == 401


def test_the_table_of_paths_knows_each_route_of_the_webserver() -> None:
    """A route that a later Dagster adds has to be looked at: it may write, or give away more than pages do."""
    from types import SimpleNamespace

    from dagster_webserver.webserver import DagsterWebserver

    routes: Any = DagsterWebserver.build_routes(DagsterWebserver(SimpleNamespace()))  # pyright: ignore[reportArgumentType]
    static = {
        one.path for one in routes if getattr(one, "name", "") == "root_static" or "_static" in str(one.name)
    }
    first = {one.path.split("/")[1] for one in routes if one.path not in static}
    assert first == {*PATHS, "server_info", "dagit_info", "graphql", "logs", "{path:path}", ""}


def launch(selection: list[str], **more: Any) -> tuple[str, dict[str, Any]]:
    """Return a launch of assets for a partition."""
    document = """mutation($p: ExecutionParams!) { launchRun(executionParams: $p) {
        __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""
    selector = {**WHERE, "jobName": "__ASSET_JOB", "assetSelection": [{"path": [one]} for one in selection]}
    tags = [{"key": "dagster/partition", "value": "monday"}, *more.pop("tags", ())]
    params = {"selector": selector | more, "mode": "default", "executionMetadata": {"tags": tags}}
    return document, {"p": params}


def message(answer: dict[str, Any]) -> str:
    return answer["errors"][0]["message"]


def test_a_launch_of_the_own_group_goes_through(guarded: GuardedDagster) -> None:
    answer = guarded.post("flyer", *launch(["departures", "delays"]))
    assert answer["data"]["launchRun"]["__typename"] == "LaunchRunSuccess", answer
    assert "_mlAssets" not in str(answer)


@pytest.mark.parametrize(
    ("selection", "more", "named"),
    [
        (["departures", "timetable"], {}, "timetable is of the group trains"),
        (["timetable"], {}, "timetable is of the group trains"),
        (["none-such"], {}, "none-such is of no known group"),
        ([], {"jobName": "all_job"}, "timetable is of the group trains"),
        ([], {"jobName": "chores"}, "the job chores"),
        ([], {}, "stations is of the group trains"),
    ],
)  # fmt: skip
def test_a_launch_beyond_the_group_is_refused_by_name(
    guarded: GuardedDagster, selection: list[str], more: dict[str, Any], named: str
) -> None:
    assert named in message(guarded.post("flyer", *launch(selection, **more)))


def test_a_job_of_the_own_group_goes_through(guarded: GuardedDagster) -> None:
    answer = guarded.post("flyer", *launch([], jobName="flights_job"))
    assert answer["data"]["launchRun"]["__typename"] == "LaunchRunSuccess", answer


@pytest.mark.parametrize(
    "tag",
    ["dagster/backfill", "dagster-k8s/config", "DAGSTER/image", ".dagster/x", "user", "ml_assets/asked_by"],
)
def test_reserved_tags_of_a_launch_are_refused(guarded: GuardedDagster, tag: str) -> None:
    asked = launch(["departures"], tags=[{"key": tag, "value": "ada"}])
    assert f"the tag '{tag}' is reserved" in message(guarded.post("operator", *asked))
    assert "is reserved" in message(
        guarded.post(
            "operator",
            "mutation($p: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $p) { __typename } }",
            {"p": {"assetSelection": {"path": "departures"}, "tags": {"key": tag, "value": "1"}}},
        )
    )


BACKFILL = """mutation($p: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $p) {
    __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }"""


def test_a_backfill_stays_within_the_group(guarded: GuardedDagster) -> None:
    """GraphQL takes one value for a list of one: the shorter spelling names the same assets."""
    names = [{"path": "departures"}], [{"path": ["departures"]}, {"path": "timetable"}], {"path": "timetable"}
    own, both, other = ({"p": {"assetSelection": one, "partitionNames": ["monday"]}} for one in names)
    begun = guarded.post("flyer", BACKFILL, own)["data"]["launchPartitionBackfill"]
    assert begun["__typename"] == "LaunchBackfillSuccess", begun
    assert "timetable is of the group trains" in message(guarded.post("flyer", BACKFILL, both))
    assert "timetable is of the group trains" in message(guarded.post("flyer", BACKFILL, other))
    trains = guarded.post("operator", BACKFILL, other)["data"]["launchPartitionBackfill"]["backfillId"]
    cancel = "mutation($id: String!) { cancelPartitionBackfill(backfillId: $id) { __typename } }"
    assert "timetable is of" in message(guarded.post("flyer", cancel, {"id": trains}))
    answer = guarded.post("flyer", cancel, {"id": begun["backfillId"]})
    assert answer["data"]["cancelPartitionBackfill"]["__typename"] == "CancelBackfillSuccess"


def test_an_execution_again_stays_within_the_group(guarded: GuardedDagster) -> None:
    own, other = (
        guarded.post("operator", *launch([name]))["data"]["launchRun"]["run"]["runId"]
        for name in ("departures", "timetable")
    )
    again = """mutation($p: ReexecutionParams) { launchRunReexecution(reexecutionParams: $p) {
        __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""
    asked: Any = [{"p": {"parentRunId": run, "strategy": "ALL_STEPS"}} for run in (own, other)]
    assert "timetable is of the group trains" in message(guarded.post("flyer", again, asked[1]))
    made = guarded.post("flyer", again, asked[0])["data"]["launchRunReexecution"]
    assert made["__typename"] == "LaunchRunSuccess", made
    row = guarded.ledger.launches.of(made["run"]["runId"])
    assert row is not None
    assert (row.author, row.by_mutation) == ("flyer", "launchRunReexecution")
    stop = "mutation($id: String!) { terminateRun(runId: $id) { __typename } }"
    assert "timetable is of the group trains" in message(guarded.post("flyer", stop, {"id": other}))
    assert "errors" not in guarded.post("flyer", stop, {"id": own})


def test_runs_and_backfills_record_who_launched_them(guarded: GuardedDagster) -> None:
    made = guarded.post(
        "flyer", BACKFILL, {"p": {"assetSelection": {"path": "departures"}, "partitionNames": ["monday"]}}
    )
    run = guarded.post("operator", *launch(["departures"]))["data"]["launchRun"]["run"]["runId"]
    backfill = made["data"]["launchPartitionBackfill"]["backfillId"]
    rows = [guarded.ledger.launches.of(one) for one in (run, backfill)]
    assert [(row.author, row.checked_by, row.by_mutation) for row in rows if row] == [
        ("operator", "token", "launchRun"),
        ("flyer", "token", "launchPartitionBackfill"),
    ]
    guarded.ledger.models.verify()


def test_several_launches_of_a_request_are_recorded(guarded: GuardedDagster) -> None:
    """Also where the client asks for no id of what it launches."""
    document = """mutation($p: [ExecutionParams!]!) { one: launchMultipleRuns(executionParamsList: $p) { ...All } }
        fragment All on LaunchMultipleRunsResultOrError { __typename }"""
    [params] = launch(["departures"])[1].values()
    before = runs(guarded)
    answer = guarded.post("operator", document, {"p": [params, params]})
    assert answer == {"data": {"one": {"__typename": "LaunchMultipleRunsResult"}}}
    new = runs(guarded) - before
    assert len(new) == 2
    assert {row.author for one in new if (row := guarded.ledger.launches.of(one))} == {"operator"}


_LOSING_ANSWERS = {
    "a field of the run fails": (
        "mutation($p: ExecutionParams!) { launchRun(executionParams: $p) "
        '{ ... on LaunchRunSuccess { run { eventConnection(afterCursor: "zz") { cursor } } } } }',
        {},
    ),
    "such a field stands in a fragment": (
        "mutation($p: ExecutionParams!) { launchRun(executionParams: $p) { ...Some } } fragment Some on "
        'LaunchRunSuccess { again: run { id: eventConnection(afterCursor: "zz") { cursor } } }',
        {},
    ),
    "another mutation fails": (
        "mutation($p: ExecutionParams!) { launchRun(executionParams: $p) { __typename } "
        'terminateRun(runId: "x") { __typename } }',
        {},
    ),
    "a field fails that another launch returns": (
        "mutation($p: ExecutionParams!, $q: ExecutionParams!) { one: launchRun(executionParams: $p) { __typename } "
        "two: launchRun(executionParams: $q) { __typename } }",
        {},
    ),
    "a character cannot be written": (
        "mutation($p: ExecutionParams!, $q: ExecutionParams!) { launchMultipleRuns(executionParamsList: [$p, $q]) { "
        "... on LaunchMultipleRunsResult { launchMultipleRunsResult { ... on PipelineNotFoundError { message } } } } }",
        {"jobName": "\ud800"},
    ),
}


@pytest.mark.parametrize("how", _LOSING_ANSWERS)
def test_no_launch_hides_its_run_from_the_ledger(guarded: GuardedDagster, how: str) -> None:
    """An answer that fails after the launch has no id, so nobody would know who launched the run."""
    document, selector = _LOSING_ANSWERS[how]
    [params] = launch(["departures"])[1].values()
    variables: dict[str, Any] = {"p": params}
    if "$q" in document:
        variables["q"] = params | {"selector": params["selector"] | selector}
    before = runs(guarded)
    answer = httpx.post(
        f"{guarded.address}/graphql",
        content=json.dumps({"query": document, "variables": variables}),
        headers=guarded.proof("operator") | {"content-type": "application/json"},
        timeout=60,
    )
    hidden = [one for one in runs(guarded) - before if guarded.ledger.launches.of(one) is None]
    assert (answer.status_code, hidden) == (400, [])


def test_a_launch_that_cannot_be_recorded_is_stopped(
    guarded: GuardedDagster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise LedgerUnavailable("the ledger is away")

    before = runs(guarded)
    monkeypatch.setattr(guarded.ledger.launches, "record", away)
    assert "stopped again, because nobody could record" in message(
        guarded.post("operator", *launch(["slow"]))
    )
    [run] = runs(guarded) - before
    query = "query($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"
    status, deadline = "", time.monotonic() + 120
    while time.monotonic() < deadline:
        status = guarded.post("viewer", query, {"id": run})["data"]["runOrError"]["status"]
        if status == "CANCELED":
            return
        time.sleep(0.5)
    raise AssertionError(status)


def runs(guarded: GuardedDagster) -> set[str]:
    """Return the ids of all runs of the webserver."""
    answer = guarded.post("viewer", "{ runsOrError { ... on Runs { results { runId } } } }")
    return {one["runId"] for one in answer["data"]["runsOrError"]["results"]}
