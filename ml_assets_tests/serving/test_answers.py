"""Answers over HTTP: rows, batches, roles, and everything that is refused."""

import json
import re
import tracemalloc
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ml_assets.model.release.bundle_store import Bundle, BundleStore
from ml_assets.model.release.runtime import GOLDEN, GOLDEN_OUTPUT, ServingModel
from ml_assets.use.serving.answering import Limits
from ml_assets.use.serving.canary import entity_of
from ml_assets.use.serving.raw_rows import RequestRefused, predict_many, predict_one
from ml_assets.use.serving.request_log import read_requests
from ml_assets.use.serving.watch import CanaryShare
from ml_assets_tests.serving.conftest import MODEL, Serve, summing
from resources.artifacts import FolderArtifacts


def _golden(bundle: Bundle) -> tuple[list[dict[str, Any]], list[float]]:
    frame = pl.read_parquet(bundle.folder / GOLDEN)
    return frame.drop(GOLDEN_OUTPUT).to_dicts(), frame[GOLDEN_OUTPUT].to_list()


def test_golden_rows_get_their_predictions_one_by_one_and_as_a_batch(serve: Serve) -> None:
    serving = serve()
    rows, expected = _golden(serving.bundles[0])
    singles = [serving.predict(row).json() for row in rows]
    batch = serving.predict(rows).json()
    assert [one["prediction"] for one in singles] == pytest.approx(expected, rel=1e-5)
    assert [one["prediction"] for one in batch["predictions"]] == pytest.approx(expected, rel=1e-5)
    assert {(one["version"], one["role"], one["model"]) for one in singles} == {(1, "production", MODEL)}


def test_the_request_id_is_the_clients_or_a_new_one(serve: Serve) -> None:
    serving = serve()
    given = serving.predict(serving.row(), **{"X-Request-Id": "order-7"})
    assert (given.json()["request_id"], given.headers["x-request-id"]) == ("order-7", "order-7")
    made = [serving.predict(serving.row()).json()["request_id"] for _ in range(2)]
    forged = serving.predict(serving.row(), **{"X-Request-Id": "a b\tc"}).json()["request_id"]
    assert len({*made, forged, "a b\tc"}) == 4


def test_an_unseen_category_is_answered_and_named(serve: Serve) -> None:
    """The model reads it as unknown, as in training. Null is a value of its own and is not named."""
    serving = serve()
    odd = serving.predict(serving.row(carrier="never seen", gate=None)).json()
    assert odd["unknown_categories"] == ["carrier"]
    batch = serving.predict([serving.row(), serving.row(gate="999")]).json()["predictions"]
    assert ["unknown_categories" in one for one in batch] == [False, True]
    labels = {"model": MODEL, "version": "1"}
    assert serving.metric("unknown_categories_total", **labels, column="carrier") == 1
    assert serving.metric("unknown_categories_total", **labels, column="gate") == 1


@pytest.mark.parametrize(
    ("changes", "field", "said"),
    [
        ({"hour": "five"}, "hour", "column 'hour' holds the text 'five': send a number or a boolean"),
        ({"hour": [1]}, "hour", "column 'hour' holds a list: send a number"),
        ({"delay": {}}, "delay", "column 'delay' holds an object"),
        (
            {"distance": 1e300},
            "distance",
            "column 'distance' holds 1e\\+300 .*beyond what the model can read",
        ),
        ({"carrier": ["AA"]}, "carrier", "column 'carrier' holds a list: send a category"),
        ({"gate": {"a": 1}}, "gate", "column 'gate' holds an object: send a category"),
    ],
)
def test_a_wrong_value_is_refused_by_its_column(
    serve: Serve, changes: dict[str, Any], field: str, said: str
) -> None:
    serving = serve()
    one = serving.predict(serving.row(**changes))
    assert (one.status_code, one.json()["field"], one.json()["row"]) == (422, field, None)
    many = serving.predict([serving.row(), serving.row(), serving.row(**changes)])
    assert (many.status_code, many.json()["field"], many.json()["row"]) == (422, field, 2)
    for answered in (one, many):
        assert re.search(said, answered.json()["message"]), answered.json()


def test_a_missing_column_is_named(serve: Serve) -> None:
    serving = serve()
    row = serving.row()
    del row["carrier"]
    for body in (row, [row]):
        answered = serving.predict(body)
        assert (answered.status_code, answered.json()["field"]) == (422, "carrier")
        assert "column 'carrier' is missing: send a category (string)" in answered.json()["message"]


JSON_TYPE = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"NaN", 400, "NaN and Infinity are not JSON: send null"),
        (b"{", 400, "not valid JSON"),
        (b'{"hour": 1}'.decode().encode("utf-16"), 400, "not valid JSON"),
        (b"", 400, "not valid JSON"),
        (b'"\xff"', 400, "not valid JSON"),
        (b"[" * 1_000 + b"]" * 1_000, 422, "row 0 is a list"),
        (b"[" * 100_000, 400, "not valid JSON"),
        (b"5", 422, "the body is the number 5"),
        (b"[]", 422, "the list is empty"),
        (b'[{"hour": 1}, null]', 422, "row 1 is null"),
        (b'{"hour": 1, "x": "' + b"y" * 10_000_000 + b'"}', 413, "more than 4,194,304 bytes"),
        (b"[" + b"{}," * 10_000 + b"{}]", 413, "10001 rows, and at most 10000 are allowed"),
    ],
)
def test_a_body_that_holds_no_rows_is_refused(serve: Serve, body: bytes, status: int, said: str) -> None:
    serving = serve()
    answered = serving.client.post(f"/models/{MODEL}/predict", content=body, headers=JSON_TYPE)
    assert answered.status_code == status
    assert said in answered.json()["message"]
    assert serving.metric("refused_total", status=str(status)) == 1


@pytest.mark.parametrize("depth", [101, 300, 1_000])
def test_a_value_nested_too_deeply_is_refused_by_its_column(serve: Serve, depth: int) -> None:
    """orjson reads 1,024 levels and writes 254: the log could not write such a row."""
    serving = serve()
    value = b'[{"a":' * (depth // 2) + b"[" * (depth % 2) + b"1" + b"]" * (depth % 2) + b"}]" * (depth // 2)
    row = json.dumps(serving.row()).encode()[:-1] + b',"note":' + value + b"}"
    for body, place in ((row, None), (b"[" + row + b"]", 0)):
        answered = serving.client.post(f"/models/{MODEL}/predict", content=body, headers=JSON_TYPE)
        assert (answered.status_code, answered.json().get("field")) == (422, "note")
        assert answered.json()["row"] == place
    assert serving.predict([serving.row(note=[[1]])]).status_code == 200


_WORDS = st.sampled_from(
    [1, 1.0, 2.5, True, False, 0, -0.0, "1", "2.5", "true", 2**53 + 1, 2**63, 2**64 - 1, None, -1]
)


@given(values=st.lists(_WORDS, min_size=2, max_size=4), column=st.sampled_from(["carrier", "gate", "hour"]))
@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
def test_a_list_of_mixed_types_is_answered_as_single_rows(
    numbered: ServingModel, values: list[Any], column: str
) -> None:
    rows = [{"hour": 3, "distance": 1.0, "carrier": None, "gate": None, column: value} for value in values]
    singles: list[Any] = []
    for row in rows:
        try:
            singles.append(predict_one(numbered, row))
        except RequestRefused:
            with pytest.raises(RequestRefused):
                predict_many(numbered, rows)
            return
    assert predict_many(numbered, rows) == singles


@pytest.fixture(scope="session")
def numbered(rows: pl.DataFrame, store: BundleStore) -> ServingModel:
    """A model whose texts look like values of other types."""
    words = ["1", "1.0", "2.5", "true", "0", "-0.0", "9007199254740993"]
    texts = pl.Series([words[i % len(words)] for i in range(len(rows))])
    return ServingModel.load(
        summing(rows.with_columns(carrier=texts), store, ["hour", "distance"], "7").folder
    )


def test_texts_longer_than_all_words_are_not_kept_in_memory(numbered: ServingModel) -> None:
    """A client that sends a new long text each time must not fill the memory."""
    row = {"hour": 3, "distance": 1.0, "carrier": None, "gate": None}
    predict_one(numbered, row)
    tracemalloc.start()
    try:
        for number in range(50):
            predict_one(numbered, {**row, "carrier": f"{number}" + "x" * 100_000})
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1_000_000


def test_a_chunked_body_is_bounded_too(serve: Serve) -> None:
    serving = serve(limits=Limits(body_bytes=1_000))
    sent = serving.client.post(f"/models/{MODEL}/predict", content=iter([b"x" * 600] * 2), headers=JSON_TYPE)
    assert sent.status_code == 413


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"Content-Type": "text/csv"}, "the content type is text/csv: send JSON"),
        ({"Content-Type": ""}, "the content type is not given"),
        ({**JSON_TYPE, "Content-Encoding": "gzip"}, "the content encoding is gzip"),
        ({**JSON_TYPE, "Content-Encoding": "Identity, gzip"}, "the content encoding is Identity, gzip"),
    ],
)
def test_another_content_type_is_refused(serve: Serve, headers: dict[str, str], said: str) -> None:
    serving = serve()
    body = json.dumps(serving.row()).encode()
    answered = serving.client.post(f"/models/{MODEL}/predict", content=body, headers=headers)
    assert (answered.status_code, said in answered.json()["message"]) == (415, True)


def test_other_paths_and_methods_get_an_answer_in_json(serve: Serve) -> None:
    serving = serve()
    wrong_method = serving.client.get(f"/models/{MODEL}/predict")
    assert (wrong_method.status_code, wrong_method.headers["allow"]) == (405, "POST")
    assert "use POST" in wrong_method.json()["message"]
    unknown = serving.client.post("/models/other/predict", json={})
    assert (unknown.status_code, unknown.json()["message"]) == (
        404,
        "'other' is not served here; there are: small",
    )
    assert serving.client.get("/nothing").status_code == 404


def test_openapi_has_the_models_columns_and_an_example_that_works(serve: Serve) -> None:
    serving = serve()
    document = serving.client.get("/openapi.json").json()
    row = document["components"]["schemas"]["small_row"]
    assert row["required"] == ["hour", "distance", "is_late", "delay", "carrier", "gate"]
    assert row["properties"]["hour"]["type"] == ["number", "boolean", "null"]
    assert row["properties"]["gate"]["description"] == "category, int64 in the feature table"
    operation = document["paths"]["/models/small/predict"]["post"]
    example = operation["requestBody"]["content"]["application/json"]["example"]
    assert serving.predict(example).status_code == 200
    assert "/ready" in document["paths"]


def test_without_a_version_in_production_the_remedy_is_named(serve: Serve) -> None:
    serving = serve(None)
    answered = serving.predict({})
    assert answered.status_code == 503
    assert "To put one there: ml-assets promote small --reason" in answered.json()["message"]
    ready = serving.client.get("/ready")
    assert (ready.status_code, ready.json()["ready"]) == (503, False)
    assert serving.client.get("/health").status_code == 200
    assert "/models/small/predict" not in serving.client.get("/openapi.json").json()["paths"]


BY_CARRIER = CanaryShare(share=0.5, by=("carrier", "tail"))


def test_the_canary_answers_its_entities_and_production_the_others(
    serve: Serve,
) -> None:
    serving = serve(canary=BY_CARRIER)
    serving.promote(2, "canary")
    rows = [serving.row(tail=f"N{i}") for i in range(40)]
    expected = [
        (2, "canary") if serving.is_of_canary(entity_of(row, BY_CARRIER.by), 2) else (1, "production")
        for row in rows
    ]
    singles = [serving.predict(row).json() for row in rows]
    batch = serving.predict(rows).json()["predictions"]
    assert len(set(expected)) == 2
    assert [(one["version"], one["role"]) for one in singles] == expected
    assert [(one["version"], one["role"]) for one in batch] == expected
    assert serving.metric("rows_total", version="2", role="canary") == 2 * expected.count((2, "canary"))


def test_a_declared_share_refuses_rows_without_their_entity(serve: Serve) -> None:
    """Also before there is a canary: otherwise requests would fail from its promotion on."""
    serving = serve(canary=BY_CARRIER)
    answered = serving.predict([serving.row(tail="N1"), serving.row()])
    assert (answered.status_code, answered.json()["field"], answered.json()["row"]) == (422, "tail", 1)
    document = serving.client.get("/openapi.json").json()
    assert "tail" in document["components"]["schemas"]["small_row"]["required"]


def test_production_answers_where_the_canary_cannot(serve: Serve) -> None:
    serving = serve(canary=CanaryShare(share=0.5, by=("carrier",)))
    serving.promote(4, "canary")
    entity = serving.of_canary(4)
    answered = serving.predict(serving.row(carrier=entity))
    assert (answered.status_code, answered.json()["version"]) == (200, 1)
    assert serving.predict(serving.row(carrier=entity, extra=1)).json()["version"] == 4
    assert serving.metric("errors_total", version="4", role="canary", kind="refused") == 1


def test_the_example_names_an_entity_that_the_model_does_not_read(serve: Serve) -> None:
    serving = serve(canary=CanaryShare(share=0.5, by=("tail",)))
    document = serving.client.get("/openapi.json").json()
    operation = document["paths"][f"/models/{MODEL}/predict"]["post"]
    example = operation["requestBody"]["content"]["application/json"]["example"]
    assert example == document["components"]["schemas"][f"{MODEL}_row"]["example"]
    assert serving.predict(example).status_code == 200


@pytest.mark.parametrize("is_list", [False, True])
def test_a_graph_that_fails_for_a_row_is_no_fault_of_the_client(serve: Serve, is_list: bool) -> None:
    serving = serve(5)
    row = serving.row(hour=1e6)
    failed = serving.predict([serving.row(), row] if is_list else row, **{"X-Request-Id": "order-7"})
    assert failed.status_code == 500
    assert set(failed.json()) == {"message", "field", "row", "request_id"}
    assert (failed.json()["request_id"], failed.json()["field"]) == ("order-7", None)
    assert "the prediction failed" in failed.json()["message"]
    assert serving.metric("errors_total", version="5", role="production", kind="GraphFailed") == 1
    assert serving.predict(serving.row()).status_code == 200


@pytest.mark.parametrize("is_list", [False, True])
def test_production_answers_where_the_graph_of_the_canary_fails(
    serve: Serve, log_artifacts: FolderArtifacts, is_list: bool
) -> None:
    """The log has the error of the canary, which its watch counts."""
    serving = serve(canary=CanaryShare(share=0.5, by=("tail",)))
    serving.promote(5, "canary")
    rows = [serving.row(tail=f"N{i}", hour=1e6) for i in range(40)]
    answered = [serving.predict(rows)] if is_list else [serving.predict(row) for row in rows]
    assert {one.status_code for one in answered} == {200}
    said = answered[0].json()["predictions"] if is_list else [one.json() for one in answered]
    assert {(one["role"], one["version"]) for one in said} == {("production", 1)}
    assert serving.metric("errors_total", version="5", role="canary", kind="GraphFailed") > 0
    serving.stop()
    now = datetime.now(UTC).date()
    log = pl.concat(read_requests(log_artifacts, MODEL, day) for day in (now - timedelta(1), now))
    failed = log.filter(pl.col("error").is_not_null())
    assert set(failed["role"]) == {"canary"}
    assert failed.height == log.filter(assigned="canary")["place" if is_list else "request_id"].n_unique()
    assert failed["error"].str.starts_with("GraphFailed: onnxruntime cannot run").all()


@pytest.mark.parametrize("path", ["/health", "/ready", "/models", "/metrics"])
def test_a_balancer_may_ask_with_head(serve: Serve, path: str) -> None:
    client = serve().client
    asked, got = client.head(path), client.get(path)
    assert (asked.status_code, asked.headers["content-type"]) == (200, got.headers["content-type"])
    assert "head" not in client.get("/openapi.json").json()["paths"][path]
