"""Promotion: a person, a reason, a log that stays, and an alias that follows the log."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ml_assets.release.promotion import NotPromotable, Releases
from ml_assets.release.registry import Registry, VersionMissing
from ml_assets.release.store import Bundle, BundleDamaged, BundleStore
from resources.ledger import Ledger
from resources.mlflow_client import open_client


@pytest.fixture
def registry(tracking_uri: str) -> Registry:
    return Registry(tracking_uri)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")


@pytest.fixture
def releases(ledger: Ledger, registry: Registry, store: BundleStore) -> Releases:
    return Releases(ledger, registry, store)


@pytest.fixture
def two_versions(registry: Registry, bundle: Bundle, variant: Callable[..., Bundle]) -> tuple[Bundle, Bundle]:
    """Versions 1 and 2, both blessed."""
    client = open_client(registry.uri)
    run_id = client.create_run(client.create_experiment("small")).info.run_id
    second = variant(fingerprint="2" * 64, snapshot_digest="6" * 64)
    for one in (bundle, second):
        registry.register(one, run_id=run_id, gate_status="blessed", links={})
    return bundle, second


def test_nothing_is_in_production_before_the_first_promotion(releases: Releases) -> None:
    assert releases.in_production("small") is None
    assert releases.champion("small") is None
    assert releases.log("small") == []


def test_the_champion_is_the_promoted_bundle_with_its_lineage(
    releases: Releases, registry: Registry, two_versions: tuple[Bundle, Bundle]
) -> None:
    promotion = releases.promote("small", 2, author="ada", reason="better on JFK")
    assert (promotion.version, promotion.author, promotion.reason) == ("2", "ada", "better on JFK")
    assert registry.aliased("small", "production") == 2
    champion = releases.champion("small")
    assert champion is not None
    assert champion.digest == two_versions[1].digest == promotion.bundle_digest
    assert champion.facts.lineage.snapshot_digest == "6" * 64
    assert champion.facts.lineage.windows["train"] == ("2013-01-29", "2013-09-30")


def test_one_version_is_in_production_and_the_log_answers_for_any_moment(
    releases: Releases, registry: Registry, two_versions: tuple[Bundle, Bundle]
) -> None:
    before = datetime.now(UTC)
    releases.promote("small", 1, author="ada", reason="first")
    first = datetime.now(UTC)
    releases.promote("small", 2, author="ada", reason="better")
    second = datetime.now(UTC)
    releases.promote("small", 1, author="bob", reason="back: 2 is slow")
    at = {moment: releases.in_production("small", moment) for moment in (before, first, second)}
    assert [row and row.version for row in at.values()] == [None, "1", "2"]
    now = releases.in_production("small")
    assert now is not None
    assert (now.version, now.author) == ("1", "bob")
    stages = {version.number: version.tags["stage"] for version in registry.versions("small")}
    assert stages == {1: "production", 2: "archived"}
    assert [row.reason for row in releases.log("small")] == ["first", "better", "back: 2 is slow"]


def test_promoting_what_is_in_production_adds_nothing(
    releases: Releases, two_versions: tuple[Bundle, Bundle]
) -> None:
    once = releases.promote("small", 1, author="ada", reason="first")
    again = releases.promote("small", 1, author="bob", reason="again")
    assert again == once
    assert len(releases.log("small")) == 1


def test_an_alias_moved_by_hand_is_repaired_when_somebody_asks(
    releases: Releases, registry: Registry, two_versions: tuple[Bundle, Bundle]
) -> None:
    releases.promote("small", 1, author="ada", reason="first")
    registry.set_alias("small", "production", 2)
    promotion = releases.in_production("small")
    assert promotion is not None
    assert promotion.version == "1"
    assert registry.aliased("small", "production") == 1
    open_client(registry.uri).delete_registered_model_alias("small", "production")
    releases.in_production("small")
    assert registry.aliased("small", "production") == 1


def test_a_kill_between_log_and_alias_is_repaired(
    releases: Releases, ledger: Ledger, registry: Registry, two_versions: tuple[Bundle, Bundle]
) -> None:
    ledger.promote(
        "small", "2", "production", author="ada", reason="better", bundle_digest=two_versions[1].digest
    )
    assert registry.aliased("small", "production") is None
    releases.in_production("small")
    assert registry.aliased("small", "production") == 2


def test_an_undecided_version_is_registered_but_not_promotable(
    releases: Releases, registry: Registry, bundle: Bundle
) -> None:
    client = open_client(registry.uri)
    run_id = client.create_run(client.create_experiment("small")).info.run_id
    registry.register(bundle, run_id=run_id, gate_status="undecided", links={})
    with pytest.raises(NotPromotable, match=r"small 1 \(1\.0\.0\) is undecided, not blessed"):
        releases.promote("small", 1, author="ada", reason="I like it")
    assert releases.log("small") == []


def test_what_cannot_be_promoted_is_refused_before_it_is_written(
    releases: Releases, two_versions: tuple[Bundle, Bundle], store: BundleStore
) -> None:
    with pytest.raises(NotPromotable, match="needs a reason"):
        releases.promote("small", 1, author="ada", reason=" ")
    with pytest.raises(VersionMissing):
        releases.promote("small", 3, author="ada", reason="new")
    weights = two_versions[1].folder / "model.safetensors"
    content = weights.read_bytes()
    weights.unlink()
    try:
        with pytest.raises(BundleDamaged):
            releases.promote("small", 2, author="ada", reason="better")
    finally:
        weights.write_bytes(content)
    assert releases.log("small") == []


def test_the_champion_is_known_while_the_tracker_is_away(
    releases: Releases,
    ledger: Ledger,
    store: BundleStore,
    two_versions: tuple[Bundle, Bundle],
    tmp_path: Path,
) -> None:
    releases.promote("small", 1, author="ada", reason="first")
    (tmp_path / "a file").touch()
    away = Releases(ledger, Registry(f"sqlite:///{tmp_path / 'a file' / 'mlflow.db'}"), store)
    champion = away.champion("small")
    assert champion is not None
    assert champion.digest == two_versions[0].digest
    promotion = away.in_production("small")
    assert promotion is not None
    assert promotion.version == "1"
