"""Many decisions about one model, each by its own process, eight at once, every third killed at a random moment."""

from dataclasses import replace
from pathlib import Path

import pytest

from ml_assets.model.release.bundle_store import Bundle, BundleStore
from ml_assets.model.release.history import state_at
from ml_assets.model.release.mlflow_view import differences
from ml_assets.model.release.promotion import register
from ml_assets_tests.faults.release_commands import (
    BY_CANARY,
    MODEL,
    Place,
    acknowledged,
    decide,
    decide_at_once,
    in_production_at,
    require_lawful,
)
from ml_assets_tests.release.conftest import bundle, contents, rows, store, variant_of
from ml_assets_tests.release.recorded_evaluations import record_evaluation
from ml_assets_tests.tables.orders_table import ORDERS, OrdersTable, days, keys
from resources.ledger import Archival, Ledger, TrainedOn
from resources.tracking.mlflow_client import open_client

__all__ = ["bundle", "contents", "rows", "store"]  # fixtures
VERSIONS = 5


@pytest.fixture
def place(tmp_path: Path, tracking_uri: str, bundle: Bundle, store: BundleStore) -> Place:
    """Five registered versions, each blessed; none is in production."""
    return registered_versions(tmp_path, tracking_uri, f"sqlite:///{tmp_path / 'ledger.db'}", bundle, store)


def registered_versions(folder: Path, tracker: str, ledger: str, bundle: Bundle, store: BundleStore) -> Place:
    orders = OrdersTable(folder)
    orders.publish(days(3))
    first, *_, last = keys(3)
    window = TrainedOn(
        commit=orders.store.resolve("main"), table=ORDERS, first=first, last=last, partitions=3
    )
    place = Place(folder / "lake", ledger, tracker, Path(store.root).parent, window)
    releases, client = place.releases(), open_client(tracker)
    run_id = client.create_run(client.create_experiment(MODEL)).info.run_id
    for number in range(VERSIONS):
        built = variant_of(bundle, store, fingerprint=f"{number}" * 64)
        record_evaluation(Ledger(ledger), built, trained_on=window)
        register(releases, built, run_id=run_id, links={})
    return place


def require_one_in_production(place: Place, folder: Path, seed: int, commands: int) -> None:
    """Run the commands, then compare ledger, history and MLflow."""
    folder.mkdir()
    outcomes = decide_at_once(place, folder, VERSIONS, commands, seed)
    print(dict(outcomes))
    assert outcomes["killed"] > 0
    releases, ledger, registry = place.releases(), Ledger(place.ledger), place.registry()
    ledger.models.verify()
    decisions = releases.log.decisions(MODEL)
    assert acknowledged(folder) <= {one.place for one in decisions}
    moments = require_lawful(decisions, place.rules)
    numbers = {one.bundle_digest: one.number for one in registry.versions(MODEL)}

    def by_ledger(at: object) -> str | None:
        held = ledger.models.in_production(MODEL, at=at)  # type: ignore[arg-type]
        return held.bundle_digest if held else None

    in_production_at(moments, by_ledger)
    for at, digest in dict(moments).items():
        said = next(state_at(decisions, at))
        assert (f"version {numbers[digest]} (" if digest else "no version") in said
    # The next decision also shows what killed processes decided.
    archived = {one.bundle_digest for one in decisions if isinstance(one, Archival)}
    number = next(number for digest, number in numbers.items() if digest not in archived)
    decide(place, "evaluate", number, "the last one", folder / "last")
    decide(place, "approve", number, "the last one", folder / "last")
    for _ in range(2):  # with a canary, the first promotion makes it one
        decide(place, "promote", number, "the last one", folder / "last")
    assert differences(releases.registry, releases.log, MODEL) == []


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_exactly_one_version_is_in_production_at_any_time(place: Place, tmp_path: Path) -> None:
    require_one_in_production(place, tmp_path / "said", seed=1, commands=40)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(1, 6))
def test_one_canary_at_a_time_and_no_version_skips_it(place: Place, tmp_path: Path, seed: int) -> None:
    require_one_in_production(replace(place, rules=BY_CANARY), tmp_path / "said", seed, commands=100)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(2, 12))
def test_exactly_one_version_is_in_production_after_more_kills(
    place: Place, tmp_path: Path, seed: int
) -> None:
    require_one_in_production(place, tmp_path / "said", seed, commands=100)
