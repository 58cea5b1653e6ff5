"""Bodies that readers of JSON differ about: a column twice, `NaN`, numbers beyond floats, half characters."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml_assets.use.serving.raw_rows import RequestRefused, parse
from ml_assets_tests.serving.conftest import MODEL, Serve

JSON_TYPE = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("members", "status", "field", "said"),
    [
        (b'"hour": NaN', 400, "hour", "holds NaN, which is no number of JSON: send null"),
        (b'"delay": [1, {"a": -Infinity}]', 400, "delay", "holds -Infinity"),
        (b'"hour": 1e999', 400, "hour", "holds 1e999"),
        (b'"hour": ' + b"9" * 5_000, 400, "hour", "holds 9999"),
        (b'"carrier": "\\ud800"', 400, "carrier", "not valid Unicode"),
        (b'"hour": 5, "hour": 7', 422, "hour", "is there twice: send it once"),
        (b'"hour": 5, "ho\\u0075r": 5', 422, "hour", "is there twice"),
        (b'"at": "5:30, \\":", "hour" : 5, "hour":5', 422, "hour", "is there twice"),
        (b'"note": [{"a": 1, "b": {"c": 1, "c": 2}}]', 422, "note", "holds an object with 'c' twice"),
    ],
)
def test_what_json_readers_differ_about_is_refused_by_column(
    serve: Serve, members: bytes, status: int, field: str, said: str
) -> None:
    """One reader takes the first of two equal columns, and another the last."""
    serving = serve()
    sent = {column: value for column, value in serving.row().items() if f'"{column}"'.encode() not in members}
    row = json.dumps(sent).encode()[:-1] + b", " + members + b"}"
    whole = json.dumps(serving.row(note={"a": [{"a": 1}]}, at="5:30", **{'a": ': ":"})).encode()
    for body, place in ((row, None), (b"[" + whole + b"," + row + b"]", 1)):
        answered = serving.client.post(f"/models/{MODEL}/predict", content=body, headers=JSON_TYPE)
        found = answered.json()
        assert (answered.status_code, found["field"], found["row"]) == (status, field, place), found
        assert said in found["message"]
    for body in (
        whole,
        b"[" + whole + b"]",
        json.dumps(serving.row(), indent=1, separators=(",", " : ")).encode(),
    ):
        assert (
            serving.client.post(f"/models/{MODEL}/predict", content=body, headers=JSON_TYPE).status_code
            == 200
        )


class _Members(tuple[tuple[str, Any], ...]):
    """Members of an object, which may repeat a name."""


_JSON = st.recursive(
    st.none() | st.integers(0, 9) | st.sampled_from(["", ":", '":', '\\": ', "a", "é"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(st.tuples(st.sampled_from(["a", "b", '":', "é"]), inner), max_size=3).map(_Members)
    ),
    max_leaves=8,
)


def _written(value: Any, space: str) -> str:
    if isinstance(value, _Members):
        return "{" + ",".join(f"{json.dumps(k)}{space}:{space}{_written(v, space)}" for k, v in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_written(one, space) for one in value) + "]"
    return json.dumps(value)


def _repeats(value: Any) -> bool:
    if isinstance(value, _Members):
        names = [name for name, _ in value]
        return len(set(names)) < len(names) or any(_repeats(one) for _, one in value)
    return isinstance(value, list) and any(map(_repeats, value))


@given(
    rows=st.lists(_JSON.filter(lambda one: isinstance(one, _Members)), min_size=1, max_size=3),
    space=st.sampled_from(["", " ", "\n"]),
)
@settings(deadline=None)
def test_a_list_is_refused_if_and_only_if_a_name_is_there_twice(rows: list[Any], space: str) -> None:
    body = _written(rows, space).encode()
    if any(map(_repeats, rows)):
        with pytest.raises(RequestRefused, match="twice"):
            parse(body, 10)
    else:
        assert parse(body, 10) == json.loads(body)
