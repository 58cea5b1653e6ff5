"""Served rows against the feature table: equal bits pass, and each input that differs is named with a row."""

import json
from typing import Any

import pytest

from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.model.release.bundle_store import Bundle
from ml_assets.use.live.served_skew import VersionSkew, served_skew
from ml_assets_tests.components.canary_home import DAYS, Change, begun, log_features
from ml_assets_tests.components.installation import Installation
from ml_assets_tests.components.readings_pipeline import PIPELINE

Home = tuple[Installation, Bundle]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Three days of features, and a bundle that reads them."""
    return begun(tmp_path_factory.mktemp("installation"))


def _compared(home: Home, day: str, change: Change) -> list[VersionSkew]:
    installation, bundle = home
    log_features(installation, bundle, day, change)
    spec = TrainingPipelineSpec.model_validate(PIPELINE)
    return served_skew(spec, installation.main, installation.platform, day)


def test_rows_of_the_table_are_equal_in_each_bit(home: Home) -> None:
    [found] = _compared(home, DAYS[0], lambda row: row)
    assert (found.rows, found.columns, found.rounded, found.left_out) == (48, (), (), {})


def test_what_a_client_rounded_is_no_other_value(home: Home) -> None:
    """The table has float32; the client sends 0.487 for 0.4869999885559082."""
    found = _compared(home, DAYS[0], lambda row: row | {"load": round(row["load"], 3)})[-1]
    assert (found.columns, found.rounded) == ((), ("load",))


def test_another_value_is_named_with_its_row(home: Home) -> None:
    def change(row: dict[str, Any]) -> dict[str, Any]:
        if row["machine"] == "drill":
            row |= {"made_yesterday": None}
        return row | ({"load": row["load"] + 0.001, "machine": "mill"} if row["at"].hour == 7 else {})

    [found] = _compared(home, DAYS[1], change)
    by_name = {one.name: one for one in found.columns}
    # The key is that of the request, so a row with another machine is compared with that machine's row.
    assert by_name["load"].rows == 4
    assert by_name["made_yesterday"].rows >= 11
    assert by_name["made_yesterday"].served is None
    assert json.loads(by_name["load"].key)[1] == "mill"


def test_rows_without_a_row_in_the_table_are_counted(home: Home) -> None:
    [found] = _compared(home, DAYS[2], lambda row: row | {"machine": "saw"} if row["at"].hour == 6 else row)
    assert (found.rows, found.left_out) == (44, {"name a key that the feature table does not have": 4})
