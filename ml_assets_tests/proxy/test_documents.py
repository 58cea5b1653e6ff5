"""Laws of reading a document: no mutation that it hides is executed without being seen."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster_webserver
import pytest
from graphql import GraphQLError, build_schema, execute, parse, print_schema, validate
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ml_assets.extras.governance.proxy.documents import dagster_schema, read_json, read_request, take_launched
from ml_assets.extras.governance.proxy.persons import PageVisitor
from ml_assets.extras.governance.proxy.rules import FREE_TAGS, LAUNCHES, PLAIN_FIELDS, is_reserved
from ml_assets.extras.governance.proxy.webserver import GuardedWebserver
from ml_assets.extras.governance.proxy.websockets import checked_message
from ml_assets.extras.governance.sessions import PageRefused
from resources.ledger import Person, Standing

_SDL = print_schema(dagster_schema())
_BEGIN, _REST = _SDL.split("type Mutation {")
_BODY, _END = _REST.split("\n}", 1)
# A result may be null here: otherwise the first one that is would end the execution of the others.
NULLABLE = build_schema(f"{_BEGIN}type Mutation {{{re.sub(r'!$', '', _BODY, flags=re.MULTILINE)}\n}}{_END}")
FIELDS = (
    "setNuxSeen",
    "freeConcurrencySlotsForRun(runId: $run)",
    "setAutoMaterializePaused(paused: true)",
    "reloadWorkspace { __typename }",
    'deleteRun(runId: "x") { __typename }',
    "__typename",
    "version",
)
VIEWER = PageVisitor(Person(name="vera", checked_by="token", account=1), Standing("viewer"))


def may_viewer(asked: Any) -> None:
    """Raise `PageRefused` unless a viewer may send this, as the proxy decides."""
    for one in asked.mutations:
        GuardedWebserver.require_allowed(SimpleNamespace(), one, VIEWER)  # pyright: ignore[reportArgumentType]


def executed(request: bytes) -> set[str]:
    """Return the mutations that a webserver executes for a request."""
    fields, seen = json.loads(request), set[str]()

    def resolve(_: object, info: Any, **__: object) -> None:
        if info.parent_type.name == "Mutation":
            seen.add(info.field_name)

    try:
        document = parse(fields["query"])
        is_valid = not validate(NULLABLE, document)
    except GraphQLError:  # one rule raises, in place of returning an error
        return seen
    if is_valid:
        given: Any = {"variable_values": fields["variables"], "operation_name": fields["operationName"]}
        execute(NULLABLE, document, field_resolver=resolve, **given)
    return seen


selections = st.recursive(
    st.builds(
        "{}{} {}".format,
        st.sampled_from(["", "", "a: ", "setNuxSeen: ", "version: "]),
        st.sampled_from(FIELDS),
        st.just(""),
    )
    | st.sampled_from(["...A", "...B", "...A @include(if: true)", "...B @skip(if: $no)"]),
    lambda inner: st.builds(
        "{} {{ {} }}".format,
        st.sampled_from(["...", "... on Mutation", "... on Query", "... @include(if: true)"]),
        st.lists(inner, min_size=1, max_size=3).map(" ".join),
    ),
    max_leaves=6,
)
bodies = st.lists(selections, min_size=1, max_size=4).map(" ".join)
operations = st.builds(
    '{} {}($run: String! = "x", $no: Boolean! = false) {{ {} }}'.format,
    st.sampled_from(["mutation", "mutation", "query", "subscription"]),
    st.sampled_from(["One", "Two"]),
    bodies,
)
fragments = st.builds(
    "fragment {} on {} {{ {} }}".format,
    st.sampled_from(["A", "B"]),
    st.sampled_from(["Mutation", "Query"]),
    bodies,
)
documents = st.lists(operations | fragments, min_size=1, max_size=4).map("\n".join)


@settings(max_examples=500)
@given(documents, st.sampled_from([None, "One", "Two", "None"]))
@example("mutation One { ...A } fragment A on Mutation { ...B } fragment B on Mutation { deleteRun(runId: \"x\") "
         "{ __typename } }", None)  # fmt: skip
@example("query One { version } mutation Two { setAutoMaterializePaused(paused: true) }", "Two")
@example(
    "mutation { setNuxSeen ... on Mutation { setNuxSeen: setAutoMaterializePaused(paused: true) } }", None
)
@example("{ version } ", None)
def test_nothing_forbidden_is_executed(document: str, name: str | None) -> None:
    """Whatever hides a mutation: fragments, aliases, directives, several operations."""
    try:
        asked = read_request({"query": document, "operationName": name})
        may_viewer(asked)
    except PageRefused:
        return
    assert executed(asked.as_json()) <= {"setNuxSeen"}


def test_the_law_can_fail() -> None:
    """The executing side sees what a document hides."""
    hidden = "mutation One { setNuxSeen ...A } fragment A on Mutation { x: setAutoMaterializePaused(paused: true) }"
    request = {"query": hidden, "variables": {}, "operationName": "One"}
    assert executed(json.dumps(request).encode()) == {"setNuxSeen", "setAutoMaterializePaused"}


@settings(max_examples=500)
@given(documents, st.sampled_from([None, "One", "Two"]))
@example(
    "subscription One { locationStateChangeEvents { event { message } } } mutation Two { setNuxSeen }", "Two"
)
def test_a_websocket_carries_no_mutation(document: str, name: str | None) -> None:
    payload = {"query": document, "operationName": name, "operation_name": name}
    try:
        sent = json.loads(checked_message(json.dumps({"type": "start", "id": "1", "payload": payload})))
    except PageRefused:
        return
    found = sent["payload"] | {"operationName": sent["payload"]["operation_name"]}
    assert executed(json.dumps(found).encode()) == set()


@given(st.binary(max_size=80) | st.text(max_size=80).map(str.encode))
@example(b"[" * 200_000)
@example(b'{"query": "{a}", "variables": ' + b"[" * 100_000)
@example(b'{"query": "' + b"{a" * 100_000 + b'"}')
@example(b'{"query": "mutation ' + b"{setNuxSeen" * 300 + b"}" * 300 + b'"}')
@example(b'[{"query": "mutation { setNuxSeen }"}]')
def test_any_body_is_read_or_refused(body: bytes) -> None:
    try:
        read_request(read_json(body))
    except PageRefused:
        return


def test_arguments_are_those_that_the_webserver_reads() -> None:
    """Defaults of variables, one value for a list, and literals count; a given variable wins."""
    document = """mutation($keys: [AssetKeyInput!] = {path: "a"}, $more: [ExecutionTag!]) {
        launchPartitionBackfill(backfillParams: {assetSelection: $keys, tags: $more}) { __typename } }"""
    [plain] = read_request({"query": document}).mutations
    assert plain.arguments["backfillParams"]["assetSelection"] == [{"path": ["a"]}]
    more = {"keys": [{"path": ["b", "c"]}], "more": {"key": "user", "value": "x"}}
    [given_] = read_request({"query": document, "variables": json.dumps(more)}).mutations
    assert given_.arguments["backfillParams"]["assetSelection"] == [{"path": ["b", "c"]}]
    assert given_.tags() == ["user"]


def test_config_of_ops_may_have_any_key() -> None:
    document = "mutation($p: ExecutionParams!) { launchRun(executionParams: $p) { __typename } }"
    selector = {"jobName": "j", "repositoryName": "r", "repositoryLocationName": "l"}
    config = {"ops": {"x": {"config": {"tags": "anything"}}}}
    asked = read_request(
        {"query": document, "variables": {"p": {"selector": selector, "runConfigData": config}}}
    )
    assert asked.mutations[0].tags() == []


def test_launches_are_asked_for_their_ids() -> None:
    document = """mutation { a: launchPartitionBackfill(backfillParams: {}) { ...X } }
        fragment X on LaunchBackfillResult { __typename }"""
    sent = json.loads(read_request({"query": document}).as_json())["query"]
    assert not validate(dagster_schema(), parse(sent))
    answer = {"a": {"__typename": "x", "_mlAssetsLaunched": "b1", "_mlAssetsLaunched_runs": ["r1", "r2"]}}
    assert take_launched(answer) == ["b1", "r1", "r2"]
    assert answer == {"a": {"__typename": "x"}}


def test_launches_of_dagsters_own_pages_are_plain() -> None:
    """A later Dagster may ask a launch for more: then its pages could not launch any more."""
    chunks = Path(dagster_webserver.__file__).parent.joinpath("webapp", "build").rglob("*.js")
    found = {
        text.replace("\\n", "\n")
        for chunk in chunks
        for text in re.findall(r"mutation \w+\([^\"]*\{[^\"]*", chunk.read_text())
        if any(f" {one}(" in text for one in LAUNCHES)
    }
    assert len(found) >= 5
    for text in found:
        asked = set(re.findall(r"^ +(\w+)(?: \{)?$", text, re.MULTILINE))
        assert "message" in asked
        assert asked <= PLAIN_FIELDS


def test_a_client_cannot_use_the_proxys_own_name() -> None:
    with pytest.raises(PageRefused, match="belongs to the proxy"):
        read_request({"query": "mutation { _mlAssetsLaunched: setNuxSeen }"})


@given(st.sampled_from(["dagster/", ".dagster/", "dagster-k8s/", "ml_assets/"]), st.text(max_size=12))
def test_tags_of_the_platform_are_reserved(prefix: str, rest: str) -> None:
    tag = prefix + rest
    is_free = tag.strip().casefold() in FREE_TAGS or tag.casefold().startswith("dagster/partition/")
    assert is_reserved(tag) or is_free
    assert not is_reserved(f"team/{rest}")
