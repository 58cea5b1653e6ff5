"""Request of GraphQL as Dagster's webserver will execute it: which mutations, with which arguments.

The proxy forwards only what it has read here, so both sides see the same request: not the client's bytes, but a new
JSON document with the same text. Mutations are validated against Dagster's own schema, which also coerces their
arguments. Not here: what is allowed (`rules`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from graphql import (
    DocumentNode,
    FieldNode,
    FragmentDefinitionNode,
    FragmentSpreadNode,
    GraphQLError,
    GraphQLSchema,
    GraphQLUnionType,
    InlineFragmentNode,
    OperationDefinitionNode,
    OperationType,
    SelectionSetNode,
    Visitor,
    get_named_type,
    parse,
    print_ast,
    validate,
    visit,
)
from graphql.execution.values import get_argument_values, get_variable_values

from ml_assets.extras.governance.proxy.rules import LAUNCHES, MARK, PLAIN_FIELDS
from ml_assets.extras.governance.sessions import PageRefused

MOST_BYTES = 4_000_000
"""Bytes of a request. A backfill names each of its partitions."""
MOST_TOKENS = 10_000
"""Tokens of a document."""


@dataclass(frozen=True)
class AskedMutation:
    """Mutation that a document calls."""

    name: str
    key: str
    """Name of its answer."""
    arguments: Mapping[str, Any]
    """Arguments as the webserver will read them."""
    may_fail: bool
    """True if its answer may be a `PythonError`, which Dagster's pages show."""

    def tags(self) -> list[str]:
        """Return the keys of all tags that it gives to runs."""
        return _tags({**self.arguments})


@dataclass(frozen=True)
class AskedDocument:
    """Request of GraphQL."""

    query: str
    variables: Mapping[str, Any]
    operation: str | None
    kinds: frozenset[str]
    """Kinds of its operations: `query`, `mutation`, `subscription`."""
    mutations: tuple[AskedMutation, ...] = ()

    @property
    def launches(self) -> bool:
        """True if a mutation of it launches runs."""
        return any(one.name in LAUNCHES for one in self.mutations)

    def as_json(self) -> bytes:
        """Return the request for the webserver. Launches are asked for the ids of what they launched, too."""
        query = print_ast(visit(parse(self.query), _Marking())) if self.launches else self.query
        variables = {**self.variables}
        return json.dumps({"query": query, "variables": variables, "operationName": self.operation}).encode()


def read_request(fields: object) -> AskedDocument:
    """Return the document of a request's fields. Raise `PageRefused`, also for a list of requests."""
    if not isinstance(fields, Mapping):
        raise PageRefused(
            400, "a request of GraphQL is one JSON object with `query`; lists of them are refused"
        )
    query, variables, operation = (fields.get(one) for one in ("query", "variables", "operationName"))  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if isinstance(variables, str):
        variables = _json(variables or "{}", "`variables`")
    variables = {} if variables is None else variables  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(query, str) or not isinstance(variables, Mapping):
        raise PageRefused(400, "a request of GraphQL has a text `query`, and an object `variables` or none")
    if operation is not None and not isinstance(operation, str):
        raise PageRefused(400, "`operationName` is a text")
    return read_document(query, variables, operation or None)  # pyright: ignore[reportUnknownArgumentType]


def read_json(body: bytes) -> object:
    """Return the JSON value of a body. Raise `PageRefused`."""
    return _json(body, "the body")


def read_document(query: str, variables: Mapping[str, Any], operation: str | None) -> AskedDocument:
    """Return what a document asks for. Raise `PageRefused` for one that cannot be read.

    A document with a mutation has one operation, so no name chooses among several. A launch is its only mutation.
    """
    _require_text(query, variables, operation)
    document = _parsed(query)
    operations = [one for one in document.definitions if isinstance(one, OperationDefinitionNode)]
    kinds = frozenset(one.operation.value for one in operations)
    if not operations:
        raise PageRefused(400, "the document has no operation")
    if "mutation" not in kinds:
        return AskedDocument(query, variables, operation, kinds)
    if len(operations) > 1:
        raise PageRefused(400, "a document with a mutation has one operation: send each of them on its own")
    if MARK in query:
        raise PageRefused(400, f"the name {MARK} belongs to the proxy")
    try:
        asked = AskedDocument(
            query, variables, operation, kinds, _mutations(document, operations[0], variables)
        )
        if asked.launches:
            _require_answer(document, asked.mutations)
        return asked
    except RecursionError:
        raise PageRefused(400, "the document is nested too deeply") from None
    except GraphQLError as error:
        raise PageRefused(400, error.message) from None


def _mutations(
    document: DocumentNode, operation: OperationDefinitionNode, variables: Mapping[str, Any]
) -> tuple[AskedMutation, ...]:
    schema = dagster_schema()
    if errors := validate(schema, document):
        raise PageRefused(400, errors[0].message)
    coerced = get_variable_values(schema, operation.variable_definitions, {**variables})
    if isinstance(coerced, list):
        raise PageRefused(400, coerced[0].message)
    root = schema.get_root_type(OperationType.MUTATION)
    fragments = {
        one.name.value: one for one in document.definitions if isinstance(one, FragmentDefinitionNode)
    }
    found: list[AskedMutation] = []
    for field in _root_fields(operation.selection_set, fragments, set()):
        name = field.name.value
        if name == "__typename" or root is None:
            continue
        # A field that a directive skips counts, too.
        arguments, answer = (
            get_argument_values(root.fields[name], field, coerced),
            get_named_type(root.fields[name].type),
        )
        may_fail = isinstance(answer, GraphQLUnionType) and "PythonError" in {
            one.name for one in answer.types
        }
        found.append(AskedMutation(name, field.alias.value if field.alias else name, arguments, may_fail))
    return tuple(found)


def _require_text(*parts: object) -> None:
    """Raise `PageRefused` for characters and numbers that the webserver cannot write into an answer.

    It would execute the request first, and then answer with an error in place of the ids of the runs.
    """
    try:
        json.dumps(parts, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise PageRefused(400, f"the request is not plain text and numbers: {error}") from None


def _require_answer(document: DocumentNode, mutations: Sequence[AskedMutation]) -> None:
    """Raise `PageRefused` for a launch whose answer could lose the ids of what it launched.

    A field that fails makes null of all that is around it, also of the ids, and the ledger would not learn who launched
    the run. So a launch is the only mutation of its document and asks for fields that cannot fail.
    """
    if len(mutations) > 1:
        raise PageRefused(400, "a launch is the only mutation of its document: send each of them on its own")
    asked = _Fields()
    visit(document, asked)
    if other := sorted(asked.names - PLAIN_FIELDS - {mutations[0].name}):
        raise PageRefused(
            400, f"a launch cannot be asked for {', '.join(other)}: ask for its id, then query the run"
        )


class _Fields(Visitor):
    """Collects the names of all fields."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def enter_field(self, node: FieldNode, *_: Any) -> None:
        self.names.add(node.name.value)


def _root_fields(
    selections: SelectionSetNode, fragments: Mapping[str, FragmentDefinitionNode], seen: set[str]
) -> list[FieldNode]:
    found: list[FieldNode] = []
    for one in selections.selections:
        if isinstance(one, FieldNode):
            found.append(one)
        elif isinstance(one, InlineFragmentNode):
            found += _root_fields(one.selection_set, fragments, seen)
        elif isinstance(one, FragmentSpreadNode) and one.name.value not in seen:
            seen.add(one.name.value)
            found += _root_fields(fragments[one.name.value].selection_set, fragments, seen)
    return found


def _parsed(query: str) -> DocumentNode:
    try:
        return parse(query, no_location=True, max_tokens=MOST_TOKENS)
    except (GraphQLError, RecursionError) as error:
        said = error.message if isinstance(error, GraphQLError) else "it is nested too deeply"
        raise PageRefused(400, f"the document cannot be read: {said}") from None


def _json(text: str | bytes, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PageRefused(400, f"{what} cannot be read as JSON: {error}") from None


@cache
def dagster_schema() -> GraphQLSchema:
    """Return the schema of the installed Dagster. The first call takes seconds."""
    from dagster_graphql.schema import create_schema

    return create_schema().graphql_schema


@cache
def _marks() -> Mapping[str, InlineFragmentNode]:
    """Return mutation → the selection that asks for the ids of what it launched, parsed."""
    found: dict[str, InlineFragmentNode] = {}
    for name, selection in LAUNCHES.items():
        [operation] = parse(f"{{ {selection} }}", no_location=True).definitions
        assert isinstance(operation, OperationDefinitionNode)
        [node] = operation.selection_set.selections
        assert isinstance(node, InlineFragmentNode)
        found[name] = node
    return found


class _Marking(Visitor):
    """Adds to each launch the selection that asks for its ids."""

    def leave_field(self, node: FieldNode, *_: Any) -> FieldNode | None:
        added = _marks().get(node.name.value)
        if added is None or node.selection_set is None:
            return None
        selections = (*node.selection_set.selections, added)
        return FieldNode(
            name=node.name,
            alias=node.alias,
            arguments=node.arguments,
            directives=node.directives,
            selection_set=SelectionSetNode(selections=selections),
        )


def take_launched(value: Any) -> list[str]:
    """Remove from an answer what the proxy asked for. Return the ids of the runs and backfills that were launched."""
    found: list[str] = []
    if isinstance(value, dict):
        for key in [one for one in value if str(one).startswith(MARK)]:  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            found += _texts(value.pop(key))
    for one in list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ():  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        found += take_launched(one)
    return found


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    parts: Any = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for one in parts for text in _texts(one)]


def _tags(value: Any) -> list[str]:
    if isinstance(value, list):
        return [tag for one in value for tag in _tags(one)]  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(value, dict):
        return []
    found: list[str] = []
    for name, part in value.items():  # pyright: ignore[reportUnknownVariableType]
        if name in ("tags", "extraTags"):
            found += [str(one["key"]) for one in part or ()]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        elif name != "runConfigData":  # of the ops: any names
            found += _tags(part)
    return found
