"""Versions that a training may begin with, and those that it may not."""

from collections.abc import Callable

import pytest

from ml_assets.data.snapshots.split_reader import file_sha256
from ml_assets.data.tables.publish.rejected import accept_partition
from ml_assets.foundation.days import Days
from ml_assets.model.release.bundle_store import Bundle
from ml_assets.model.release.initial_version import InitialModel, InitialModelRefused, initial_model
from ml_assets.model.release.promotion import promote, register
from ml_assets.model.release.registry import Registry, VersionMissing
from ml_assets.model.release.releases import Releases
from ml_assets.model.release.rollback import archive
from ml_assets_tests.release.conftest import CATEGORY, NUMERIC, Evaluate, refuses
from ml_assets_tests.tables.orders_table import ORDERS, OrdersTable, keys, reject
from resources.ledger import Person
from resources.tracking.mlflow_client import open_client

Resolve = Callable[[str], InitialModel]


@pytest.fixture
def resolve(
    tracking_uri: str,
    evaluate: Evaluate,
    releases: Releases,
    bundle: Bundle,
    variant: Callable[..., Bundle],
) -> Resolve:
    """Return a resolver over two registered versions of `small`."""
    client = open_client(tracking_uri)
    run_id = client.create_run(client.create_experiment("small")).info.run_id
    for one in (bundle, variant(fingerprint="2" * 64)):
        evaluate(one)
        register(releases, one, run_id=run_id, links={})
    return lambda reference: initial_model(reference, releases)


def test_a_number_names_one_version_and_an_alias_the_one_that_has_it_now(
    resolve: Resolve, releases: Releases, evaluate: Evaluate, registry: Registry, bundle: Bundle
) -> None:
    assert resolve("small/1").bundle.digest == bundle.digest
    assert resolve("small/1").weights_sha256 == file_sha256(bundle.folder / "model.safetensors")
    for number in (2, 1):
        evaluate(resolve(f"small/{number}").bundle)
        promote(releases, "small", number, by=Person.unchecked("ada"), reason="a test")
        assert resolve("small@production").version == f"small/{number}"
    registry.set_alias("small", "candidate", 2)
    assert resolve("small@candidate").version == "small/2"


@pytest.mark.parametrize("reference", ["small@production", "small@candidate", "other@production"])
def test_an_alias_that_nobody_has_is_refused_with_what_helps(resolve: Resolve, reference: str) -> None:
    model, _, alias = reference.partition("@")
    with refuses(
        InitialModelRefused, "role", f"no version of {model} is {alias}", f"ml-assets promote {model}"
    ):
        resolve(reference)


def test_a_version_that_is_not_there_is_named_with_those_that_are(resolve: Resolve) -> None:
    with pytest.raises(VersionMissing, match=r"no version 3; .* 1 \(1.0.0\), 2"):
        resolve("small/3")


def test_the_training_keeps_how_columns_were_encoded(resolve: Resolve, bundle: Bundle) -> None:
    kept = resolve("small/1").fitted_for(NUMERIC, CATEGORY)
    assert kept == bundle.facts.fitted


def test_other_columns_or_another_order_are_refused(resolve: Resolve) -> None:
    with refuses(InitialModelRefused, "columns", "small/1", *NUMERIC):
        resolve("small/1").fitted_for(NUMERIC[::-1], CATEGORY)


def test_a_version_that_has_learned_from_the_holdout_or_later_is_refused(resolve: Resolve) -> None:
    """By days: the key of a month is the first of it, and the weights of the version have seen its last day."""
    version = resolve("small/1")
    version.require_unseen(Days((("2013-10-01", "2013-10-02"),)))
    for holdout in (("2013-09-30", "2013-10-01"), ("2013-09-01", "2013-09-30"), ("2013-01-01", "2013-01-02")):
        with refuses(InitialModelRefused, "seen", "small/1", "2013-01-29 to 2013-09-30"):
            version.require_unseen(Days((holdout,)))


def test_a_version_that_its_newest_evaluation_rejected_is_refused(
    resolve: Resolve, releases: Releases, evaluate: Evaluate, bundle: Bundle
) -> None:
    """A version that was once in production is not refused: a rollback to it is possible, too."""
    newest = evaluate(bundle, "rejected")
    with refuses(InitialModelRefused, "evaluation", "small/1 is rejected", newest.name):
        resolve("small/1")
    evaluate(bundle, told="again")
    promote(releases, "small", 1, by=Person.unchecked("ada"), reason="a test")
    evaluate(bundle, "rejected", told="on rows that others have seen")
    assert resolve("small/1").bundle.digest == resolve("small@production").bundle.digest == bundle.digest


def test_an_archived_version_is_refused_by_name(resolve: Resolve, releases: Releases) -> None:
    archive(releases, "small", 1, by=Person.unchecked("bob"), reason="trained on private data")
    with refuses(InitialModelRefused, "archived", "small/1", "by bob: trained on private data"):
        resolve("small/1")


@pytest.mark.parametrize("reference", ["small/1", "small@production"])
def test_a_version_of_rows_that_were_rejected_since_is_refused(
    resolve: Resolve, releases: Releases, orders: OrdersTable, reference: str
) -> None:
    day = keys(3)[1]
    promote(releases, "small", 1, by=Person.unchecked("ada"), reason="a test")
    reject(orders, day)
    with refuses(InitialModelRefused, "inputs", f"{ORDERS} {day} "):
        resolve(reference)
    accept_partition(orders.store, orders.ledger, ORDERS, day, Person.unchecked("ada"), "one till was off")
    assert resolve(reference).version == "small/1"


def test_a_version_that_nobody_evaluated_is_refused(
    resolve: Resolve, tracking_uri: str, variant: Callable[..., Bundle]
) -> None:
    """Made by hand in MLflow."""
    address = variant(fingerprint="9" * 64).address
    open_client(tracking_uri).create_model_version("small", address)
    with refuses(InitialModelRefused, "evaluation", "small/3 was never"):
        resolve("small/3")
