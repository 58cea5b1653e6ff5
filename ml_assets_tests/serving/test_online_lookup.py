"""Requests that name an entity alone: the server takes the other columns from the online store."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ml_assets.use.serving.online_lookup import OnlineLookup
from ml_assets.use.serving.request_log import read_requests
from ml_assets.use.serving.watch import CanaryShare
from ml_assets_tests.serving.conftest import MODEL, Serve
from ml_assets_tests.serving.online_rows import EXPIRED, NOW, TABLE, filled, stored_rows
from resources.artifacts import FolderArtifacts
from resources.online import SQLiteOnlineStore


@pytest.fixture
def online(tmp_path: Path) -> OnlineLookup:
    """Rows of three aircraft in SQLite."""
    return filled(SQLiteOnlineStore(tmp_path / "online.db", environment="test"))


def whole(number: int, **changes: Any) -> dict[str, Any]:
    """Return the stored row of an aircraft as a client would send it."""
    stored = pl.DataFrame(stored_rows(), schema=TABLE.frame_of([]).schema)
    row = stored.row(number - 1, named=True)
    sent = {name: None if value != value else value for name, value in row.items()}
    return json.loads(json.dumps({**sent, **changes}, default=lambda one: one.isoformat()))


def test_an_entity_alone_gets_the_prediction_of_its_row(
    serve: Serve, online: OnlineLookup, log_artifacts: FolderArtifacts
) -> None:
    serving = serve(online=online)
    for number in (1, 2):
        said = serving.predict({"tail": f"N{number}"}).json()
        assert said["prediction"] == pytest.approx(
            serving.predict(whole(number)).json()["prediction"], rel=1e-6
        )
        assert set(said["online"]["columns"]) == set(whole(number)) - {"tail", "predicted_at"}
        at = datetime.fromisoformat(said["online"]["features_at"])
        assert at == stored_rows()[number - 1]["predicted_at"]
        assert datetime.fromisoformat(said["online"]["known_at"]) == NOW
    assert "online" not in serving.predict(whole(1)).json()
    assert serving.metric("online_rows_total", model=MODEL) == 2
    serving.stop()
    logged = read_requests(log_artifacts, MODEL, datetime.now(UTC).date())
    rows = [json.loads(text) for text in logged["row"]]
    assert rows[0]["day"] == NOW.date().isoformat(), "the primary key, by which skew joins"
    assert {name: rows[0][name] for name in ("hour", "delay", "gate")} == {"hour": 5, "delay": 3.5, "gate": 4}
    assert rows[2]["delay"] is None


def test_columns_of_the_request_win(serve: Serve, online: OnlineLookup) -> None:
    serving = serve(online=online)
    said = serving.predict({"tail": "N1", "hour": 23, "gate": None}).json()
    assert said["prediction"] == pytest.approx(
        serving.predict(whole(1, hour=23, gate=None)).json()["prediction"], rel=1e-6
    )
    assert not {"hour", "gate"} & set(said["online"]["columns"])


def test_a_list_may_mix_both_forms(serve: Serve, online: OnlineLookup) -> None:
    serving = serve(online=online)
    found = serving.predict([{"tail": "N1"}, whole(2), {"tail": "N2"}]).json()["predictions"]
    assert ["online" in one for one in found] == [True, False, True]
    assert found[1]["prediction"] == pytest.approx(found[2]["prediction"], rel=1e-6)


@pytest.mark.parametrize(
    ("row", "field", "said"),
    [
        (
            {"tail": EXPIRED},
            "hour",
            f"column 'hour' is missing, and .* has no row of features/flights for tail={EXPIRED}",
        ),
        (
            {"tail": "N99"},
            "hour",
            "has no row of features/flights for tail=N99, or it has expired: send the column",
        ),
        (
            {"hour": 5},
            "tail",
            "column 'distance' is missing, and 'tail' is missing or null, which names the entity",
        ),
        ({"tail": 5}, "tail", "tail is 5, which is not a string of features/flights"),
    ],
)
def test_what_cannot_be_looked_up_is_refused_by_name(
    serve: Serve, online: OnlineLookup, row: dict[str, Any], field: str, said: str
) -> None:
    serving = serve(online=online)
    for sent, place in ((row, None), ([whole(1), row], 1)):
        refused = serving.predict(sent)
        assert (refused.status_code, refused.json()["field"], refused.json()["row"]) == (422, field, place)
        assert re.search(said, refused.json()["message"])


def test_a_damaged_store_refuses_only_rows_that_need_it(
    serve: Serve, online: OnlineLookup, tmp_path: Path
) -> None:
    serving = serve(online=online)
    for file in tmp_path.glob("online.db*"):
        file.write_bytes(b"not a database " * 1_000)
    refused = serving.predict({"tail": "N1"})
    assert (refused.status_code, "is damaged" in refused.json()["message"]) == (503, True)
    assert serving.predict(whole(1)).status_code == 200


def test_without_the_option_a_missing_column_is_refused(serve: Serve) -> None:
    refused = serve().predict({"tail": "N1"})
    assert (refused.status_code, refused.json()["field"]) == (422, "hour")


def test_a_canary_answers_its_entities_from_the_store(serve: Serve, online: OnlineLookup) -> None:
    serving = serve(online=online, canary=CanaryShare(share=0.5, by=("tail",)))
    tails = [f"N{number}" for number in range(1, 13) if f"N{number}" != EXPIRED]

    def roles() -> list[str]:
        return [serving.predict({"tail": tail}).json()["role"] for tail in tails]

    serving.promote(4, "canary")  # it reads a column that nobody stores
    assert roles() == ["production"] * len(tails)
    serving.promote(2, "canary")
    chosen = [serving.is_of_canary(f'["{tail}"]', 2) for tail in tails]
    assert roles() == ["canary" if one else "production" for one in chosen]
    assert set(chosen) == {True, False}


def test_the_openapi_document_names_both_forms(serve: Serve, online: OnlineLookup) -> None:
    document = serve(online=online).client.get("/openapi.json").json()
    row = document["components"]["schemas"][f"{MODEL}_row"]
    assert row["anyOf"][1]["required"] == ["tail"]
    assert "hour" in row["anyOf"][0]["required"]
    assert "tail" in row["properties"]
    assert "online" in document["components"]["schemas"][f"{MODEL}_answer"]["properties"]
