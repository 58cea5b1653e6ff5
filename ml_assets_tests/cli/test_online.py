"""The newest row of each entity goes from the feature table to `ml-assets online get` and to notebooks."""

from collections.abc import Callable
from typing import Any

import pytest

from ml_assets.components.feature_table import FeatureTable
from ml_assets.components.specs import OnlineSection
from ml_assets.context import Context
from ml_assets.data.tables.reader import TableReader
from ml_assets_tests.cli.conftest import TRAINED_WEEK, WEEK
from ml_assets_tests.cli.terminal import Terminal
from resources.platform import Platform
from resources.settings import Settings

ONLINE = "features/sales_features/online"
MILK = {"store": "store_03", "product": "milk"}


@pytest.fixture
def online_as(monkeypatch: pytest.MonkeyPatch) -> Callable[[OnlineSection], None]:
    """Declare another `online` for `sales_features`."""
    load = FeatureTable.load.__func__

    def declare(online: OnlineSection) -> None:
        def edited(cls: type[FeatureTable], spec: Any, context: Any) -> FeatureTable:
            is_edited = spec.name == "sales_features"
            return load(cls, spec.model_copy(update={"online": online}) if is_edited else spec, context)

        monkeypatch.setattr(FeatureTable, "load", classmethod(edited))

    return declare


def get(terminal: Terminal) -> list[str]:
    """Return the printed row of the milk of store 3."""
    said = terminal("online", "get", "sales_features", "store=store_03", "product=milk")
    assert said.status == 0, said.err
    return said.out.splitlines()


def test_online_rows_are_those_of_the_feature_table(filled_terminal: Terminal) -> None:
    for weeks in (TRAINED_WEEK, WEEK):  # an older partition does not replace a newer row
        said = filled_terminal("launch", ONLINE, weeks)
        assert said.status == 0, said.err
    settings = Settings.model_validate({"home": filled_terminal.home})
    reader = TableReader.at(Platform(settings).lake)
    offline = reader.scan("features/sales_features", [TRAINED_WEEK]).collect()
    online = Context.open(settings).features("sales_features").online(MILK)
    assert online.equals(offline.filter(**MILK).select(online.columns)), "bit for bit"
    assert not {"units", "label_known_at"} & set(online.columns), (
        "labels are not known when the model predicts"
    )
    assert f"partition_date: {TRAINED_WEEK}" in get(filled_terminal)


def test_an_expired_row_is_not_returned(
    filled_terminal: Terminal, online_as: Callable[[OnlineSection], None]
) -> None:
    """Also if it was stored before the time to live was declared."""
    assert filled_terminal("launch", ONLINE, TRAINED_WEEK).status == 0
    online_as(OnlineSection(entity=("store", "product"), ttl_hours=24))
    said = filled_terminal("online", "get", "sales_features", "store=store_09", "product=milk")
    assert said.status == 1
    assert f"To fill it: ml-assets launch {ONLINE} PARTITIONS" in said.err


def test_asking_an_empty_home_creates_no_store(terminal: Terminal) -> None:
    said = terminal("online", "get", "sales_features", "store=store_03", "product=milk")
    assert said.status == 1
    assert "has no row of features/sales_features for store=store_03 product=milk" in said.err
    assert list(terminal.home.rglob("*online.db*")) == []


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        (("sales_features", "store=store_03"), "product not given: an entity of features/sales_features"),
        (("sales_features", "stor=store_03"), "did you mean 'store'"),
        (("flight_departures", "carrier=UA"), "declares no `online`"),
        (("sales_featuers", "store=store_03"), "no feature table is named 'sales_featuers'"),
    ],
)
def test_a_wrong_entity_or_table_is_named(terminal: Terminal, typed: tuple[str, ...], why: str) -> None:
    said = terminal("online", "get", *typed)
    assert said.status == 1
    assert why in said.err


def test_entities_with_two_newest_rows_are_refused(
    filled_terminal: Terminal, online_as: Callable[[OnlineSection], None]
) -> None:
    online_as(OnlineSection(entity=("store",)))
    said = filled_terminal("launch", ONLINE, WEEK)
    assert said.status == 1
    assert "entities have several rows with the newest predicted_at" in said.err


def test_serving_by_entity_needs_online_rows(terminal: Terminal) -> None:
    said = terminal("serve", "flight_delay", "--online")
    assert said.status == 1
    assert "features/flight_departures declares no `online`" in said.err


def test_a_missing_partition_is_refused_by_name(filled_terminal: Terminal) -> None:
    said = filled_terminal("launch", ONLINE, "2024-06-03")
    assert said.status == 1
    assert "features/sales_features 2024-06-03 is missing" in said.err
