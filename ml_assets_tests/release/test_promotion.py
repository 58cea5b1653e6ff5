"""Promotion: a person, a reason, a log that stays, and an alias that follows the log."""

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from ml_assets.data.tables.publish.rejected import accept_partition
from ml_assets.model.release.bundle_store import Bundle, BundleDamaged, BundleStore
from ml_assets.model.release.known_versions import number_reader_of
from ml_assets.model.release.mlflow_view import differences, show
from ml_assets.model.release.promotion import newest_data, promote, register
from ml_assets.model.release.registry import NumberReused, Registry, VersionMissing
from ml_assets.model.release.releases import NotPromotable, Releases
from ml_assets.model.release.rollback import archive, demote
from ml_assets.model.release.standing import InputsRejected
from ml_assets.model.steps.record import version_to_show
from ml_assets_tests.release.conftest import Evaluate, Meanwhile, refuses
from ml_assets_tests.release.recorded_evaluations import record_evaluation
from ml_assets_tests.tables.orders_table import ORDERS, OrdersTable, day, keys, reject
from resources.artifacts import FolderArtifacts
from resources.ledger import Ledger, Person, TrainedOn
from resources.platform import Platform
from resources.tracking.mlflow_client import TrackerUnavailable, open_client


def test_nothing_is_in_production_before_the_first_promotion(releases: Releases) -> None:
    assert releases.in_production("small") is None
    assert releases.champion("small") is None
    assert releases.log.promotions("small") == []


def test_the_champion_is_the_promoted_bundle_with_its_lineage(
    releases: Releases, registry: Registry, two_versions: tuple[Bundle, Bundle]
) -> None:
    promotion = promote(releases, "small", 2, by=Person.unchecked("ada"), reason="better on JFK")
    assert (promotion.version, promotion.author, promotion.reason) == ("2", "ada", "better on JFK")
    assert registry.aliased("small", "production") == 2
    champion = releases.champion("small")
    assert champion is not None
    assert champion.digest == two_versions[1].digest == promotion.bundle_digest
    assert champion.facts.lineage.snapshot_digest == "6" * 64
    assert champion.facts.lineage.windows["train"] == ("2013-01-29", "2013-09-30")


def test_one_version_is_in_production_and_the_log_answers_for_any_moment(
    releases: Releases, registry: Registry, evaluate: Evaluate, two_versions: tuple[Bundle, Bundle]
) -> None:
    before = datetime.now(UTC)
    promote(releases, "small", 1, by=Person.unchecked("ada"), reason="first")
    first = datetime.now(UTC)
    evaluate(two_versions[1])
    promote(releases, "small", 2, by=Person.unchecked("ada"), reason="better")
    second = datetime.now(UTC)
    promote(releases, "small", 1, by=Person.unchecked("bob"), reason="back: 2 is slow")
    at = {moment: releases.in_production("small", moment) for moment in (before, first, second)}
    assert [row and row.version for row in at.values()] == [None, "1", "2"]
    now = releases.in_production("small")
    assert now is not None
    assert (now.version, now.author) == ("1", "bob")
    stages = {version.number: version.tags["stage"] for version in registry.versions("small")}
    assert stages == {1: "production", 2: "replaced"}
    assert [row.reason for row in releases.log.promotions("small")] == ["first", "better", "back: 2 is slow"]


def test_promoting_what_is_in_production_adds_nothing(
    releases: Releases, two_versions: tuple[Bundle, Bundle]
) -> None:
    once = promote(releases, "small", 1, by=Person.unchecked("ada"), reason="first")
    again = promote(releases, "small", 1, by=Person.unchecked("bob"), reason="again")
    assert again == once
    assert len(releases.log.promotions("small")) == 1


def test_a_rejection_during_the_verification_stops_the_promotion(
    orders: OrdersTable,
    evaluate: Evaluate,
    registry: Registry,
    store: BundleStore,
    two_versions: tuple[Bundle, Bundle],
) -> None:
    """Reading the files of a bundle takes its time, and another run evaluates it meanwhile."""
    slow = Meanwhile(store, lambda bundle: evaluate(bundle, "rejected", told="meanwhile"))
    releases = Releases(orders.ledger, registry, slow, orders.store)
    with refuses(NotPromotable, "evaluation", "is rejected, not blessed"):
        promote(releases, "small", 2, by=Person.unchecked("ada"), reason="better")
    assert slow.opened == [two_versions[1].digest]
    assert releases.log.promotions("small") == []
    assert registry.aliased("small", "production") is None


def test_a_version_of_a_day_rejected_since_needs_a_recorded_acceptance(
    releases: Releases, orders: OrdersTable, two_versions: tuple[Bundle, Bundle]
) -> None:
    """Promotion needs `--despite-inputs` with a reason, and the log keeps both."""
    bad = keys(3)[1]
    reject(orders, bad)
    command = "ml-assets promote small 1 --despite-inputs"
    rejected = f"{ORDERS} {bad} is rejected: out_of_range"
    with refuses(NotPromotable, "inputs", r"small 1 \(1.0.0\)", rejected, command):
        promote(releases, "small", 1, by=Person.unchecked("ada"), reason="first")
    assert releases.log.promotions("small") == []
    first = promote(
        releases, "small", 1, by=Person.unchecked("ada"), reason="one till was off", despite_inputs=True
    )
    assert first.despite.startswith(f"{ORDERS} {bad} is rejected: out_of_range in amount")
    assert releases.log.promotions("small") == [first]


def test_a_word_on_inputs_leaves_no_trace_where_nothing_stood_against_them(
    releases: Releases, two_versions: tuple[Bundle, Bundle]
) -> None:
    assert (
        promote(releases, "small", 1, by=Person.unchecked("ada"), reason="first", despite_inputs=True).despite
        == ""
    )


def test_an_accepted_or_mended_day_does_not_block_a_version(
    releases: Releases, orders: OrdersTable, evaluate: Evaluate, two_versions: tuple[Bundle, Bundle]
) -> None:
    accepted, mended, _ = keys(3)
    for key in (accepted, mended):
        reject(orders, key)
    accept_partition(
        orders.store, orders.ledger, ORDERS, accepted, Person.unchecked("ada"), "one till was off"
    )
    with refuses(NotPromotable, "inputs", f"{ORDERS} {mended} is rejected") as refused:
        promote(releases, "small", 1, by=Person.unchecked("ada"), reason="first")
    assert f"{ORDERS} {accepted}" not in str(refused.value)
    orders.publish({mended: day(mended, factor=2.0)}, run="run00003")
    assert promote(releases, "small", 1, by=Person.unchecked("ada"), reason="first").despite == ""


def test_a_day_rejected_during_the_verification_stops_the_promotion(
    orders: OrdersTable, registry: Registry, store: BundleStore, two_versions: tuple[Bundle, Bundle]
) -> None:
    bad = keys(3)[2]
    slow = Meanwhile(store, lambda _: reject(orders, bad))
    releases = Releases(orders.ledger, registry, slow, orders.store)
    with refuses(NotPromotable, "inputs", f"{ORDERS} {bad} is rejected"):
        promote(releases, "small", 2, by=Person.unchecked("ada"), reason="better")
    assert releases.log.promotions("small") == []


def test_a_day_rejected_after_the_evaluation_blocks_the_registration(
    releases: Releases,
    registry: Registry,
    orders: OrdersTable,
    evaluate: Evaluate,
    run_id: str,
    bundle: Bundle,
) -> None:
    bad = keys(3)[0]
    evaluate(bundle)
    reject(orders, bad)
    with pytest.raises(InputsRejected, match=f"{ORDERS} {bad} is rejected"):
        register(releases, bundle, run_id=run_id, links={})
    assert registry.versions("small") == []
    accept_partition(orders.store, orders.ledger, ORDERS, bad, Person.unchecked("ada"), "one till was off")
    assert register(releases, bundle, run_id=run_id, links={}).semantic == "1.0.0"


def test_rows_of_the_version_a_training_began_with_stand_against_it_too(
    releases: Releases, orders: OrdersTable, ledger: Ledger, window: TrainedOn, run_id: str, bundle: Bundle,
    variant: Callable[..., Bundle],
) -> None:  # fmt: skip
    bad, _, last = keys(3)
    begun_with = record_evaluation(ledger, bundle, trained_on=window)
    later = replace(window, first=last, partitions=1, begins_with=begun_with.evaluation_digest)
    tuned = variant(fingerprint="2" * 64)
    record_evaluation(ledger, tuned, trained_on=later)
    register(releases, tuned, run_id=run_id, links={})
    reject(orders, bad)
    with refuses(NotPromotable, "inputs", f"{ORDERS} {bad} is rejected"):
        promote(releases, "small", 1, by=Person.unchecked("ada"), reason="first")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"commit": "0" * 64}, "the lake no longer holds datasets/orders"),
        ({"first": "2012-12-31", "partitions": 4}, "holds 3 partitions of datasets/orders"),
        ({"begins_with": "e" * 64}, "the ledger lacks evaluation eeeeeeeeeeee of the version it began with"),
    ],
)
def test_a_version_whose_inputs_nobody_knows_needs_the_same_word(
    releases: Releases, ledger: Ledger, window: TrainedOn, changes: dict[str, Any], why: str,
    two_versions: tuple[Bundle, Bundle],
) -> None:  # fmt: skip
    record_evaluation(ledger, two_versions[0], told="again", trained_on=replace(window, **changes))
    with refuses(NotPromotable, "inputs", "its inputs are not known", why):
        promote(releases, "small", 1, by=Person.unchecked("ada"), reason="first")
    assert (
        why
        in promote(
            releases, "small", 1, by=Person.unchecked("ada"), reason="first", despite_inputs=True
        ).despite
    )


def test_a_version_not_compared_with_the_one_in_production_is_refused(
    releases: Releases, evaluate: Evaluate, two_versions: tuple[Bundle, Bundle]
) -> None:
    """The error names the command that compares them."""
    promote(releases, "small", 1, by=Person.unchecked("ada"), reason="first")
    found = (r"of small 2 \(1.0.1\)", "no other version", "version 1 is in production")
    with refuses(NotPromotable, "champion", *found, "ml-assets launch small 2013-12-31"):
        promote(releases, "small", 2, by=Person.unchecked("ada"), reason="better")
    evaluate(two_versions[1])
    assert promote(releases, "small", 2, by=Person.unchecked("ada"), reason="better").version == "2"


def test_a_version_that_was_compared_with_a_champion_of_before_is_refused(
    releases: Releases,
    evaluate: Evaluate,
    run_id: str,
    two_versions: tuple[Bundle, Bundle],
    variant: Callable[..., Bundle],
) -> None:
    promote(releases, "small", 1, by=Person.unchecked("ada"), reason="first")
    third = variant(fingerprint="3" * 64)
    for one in (two_versions[1], third):
        evaluate(one, told="beside version 1")
    register(releases, third, run_id=run_id, links={})
    promote(releases, "small", 2, by=Person.unchecked("ada"), reason="better")
    with refuses(NotPromotable, "champion", "of small 3", "with version 1", "version 2 is in production"):
        promote(releases, "small", 3, by=Person.unchecked("ada"), reason="better yet")
    demote(releases, "small", by=Person.unchecked("ada"), reason="wrong prices")
    assert (
        promote(releases, "small", 3, by=Person.unchecked("ada"), reason="nothing else is there").version
        == "3"
    )


def test_of_two_versions_promoted_at_once_one_is_refused(
    orders: OrdersTable, registry: Registry, store: BundleStore, releases: Releases, evaluate: Evaluate, run_id: str,
    two_versions: tuple[Bundle, Bundle], variant: Callable[..., Bundle],
) -> None:  # fmt: skip
    """Both were compared with version 1. The second to arrive was never compared with the first."""
    promote(releases, "small", 1, by=Person.unchecked("ada"), reason="first")
    third = variant(fingerprint="3" * 64)
    for one in (two_versions[1], third):
        evaluate(one, told="beside version 1")
    register(releases, third, run_id=run_id, links={})
    together = Barrier(2)
    looking = Meanwhile(store, lambda _: together.wait(60))

    def answer(number: int) -> str | NotPromotable:
        try:
            own = Releases(orders.ledger, registry, looking, orders.store)
            return promote(own, "small", number, by=Person.unchecked("ada"), reason="better").version
        except NotPromotable as refused:
            return refused

    with ThreadPoolExecutor(2) as both:
        promoted, refused = sorted(both.map(answer, (2, 3)), key=lambda one: isinstance(one, NotPromotable))
    assert promoted in ("2", "3")
    assert isinstance(refused, NotPromotable)
    assert refused.ground == "champion"
    assert "with version 1, but" in str(refused)
    assert f"version {promoted} is in production" in str(refused)
    assert [one.version for one in releases.log.promotions("small")] == ["1", promoted]


class _Overtaken(Registry):
    """The registry, and what another process does just before the alias is looked up for the first time."""

    def __init__(self, registry: Registry, meanwhile: Callable[[], object]) -> None:
        super().__init__(registry.uri, registry.bundles)
        self._meanwhile: Callable[[], object] | None = meanwhile

    def aliased(self, model: str, alias: str) -> int | None:
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return super().aliased(model, alias)


def test_the_alias_shows_the_later_of_two_decisions(
    orders: OrdersTable, registry: Registry, store: BundleStore, releases: Releases,
    two_versions: tuple[Bundle, Bundle],
) -> None:  # fmt: skip
    """The second came between the first row in the ledger and the alias for it."""

    def other() -> None:
        demote(releases, "small", by=Person.unchecked("bob"), reason="not this one")
        promote(releases, "small", 2, by=Person.unchecked("bob"), reason="but this one")

    slow = Releases(orders.ledger, _Overtaken(registry, other), store, orders.store)
    promote(slow, "small", 1, by=Person.unchecked("ada"), reason="first")
    assert registry.aliased("small", "production") == 2
    stages = {version.number: version.tags["stage"] for version in registry.versions("small")}
    assert stages == {1: "replaced", 2: "production"}


def test_an_alias_moved_by_hand_is_repaired_when_somebody_asks(
    releases: Releases, registry: Registry, two_versions: tuple[Bundle, Bundle]
) -> None:
    promote(releases, "small", 1, by=Person.unchecked("ada"), reason="first")
    registry.set_alias("small", "production", 2)
    standing = releases.in_production("small")
    assert standing is not None
    assert standing.version == "1"
    assert registry.aliased("small", "production") == 1
    open_client(registry.uri).delete_registered_model_alias("small", "production")
    releases.in_production("small")
    assert registry.aliased("small", "production") == 1


def test_a_kill_between_log_and_alias_is_repaired(
    releases: Releases, ledger: Ledger, registry: Registry, two_versions: tuple[Bundle, Bundle]
) -> None:
    evaluation = ledger.models.newest_evaluation("small", two_versions[1].digest)
    assert evaluation is not None
    ledger.models.promote(
        "small",
        "2",
        "production",
        by=Person.unchecked("ada"),
        reason="better",
        bundle_digest=two_versions[1].digest,
        evaluation_digest=evaluation.evaluation_digest,
    )
    assert registry.aliased("small", "production") is None
    releases.in_production("small")
    assert registry.aliased("small", "production") == 2


def test_an_undecided_version_is_registered_but_not_promotable(
    releases: Releases, evaluate: Evaluate, run_id: str, bundle: Bundle
) -> None:
    evaluate(bundle, "undecided")
    register(releases, bundle, run_id=run_id, links={})
    with refuses(NotPromotable, "evaluation", r"small 1 \(1\.0\.0\) is undecided"):
        promote(releases, "small", 1, by=Person.unchecked("ada"), reason="I like it")
    assert releases.log.promotions("small") == []


def test_the_newest_evaluation_decides_whatever_tags_say(
    releases: Releases, registry: Registry, evaluate: Evaluate, two_versions: tuple[Bundle, Bundle]
) -> None:
    """Whoever can write a tag in MLflow must not be able to promote with it."""
    rejected = evaluate(two_versions[1], "rejected", told="again")
    show(releases.registry, releases.log, "small")
    assert registry.version("small", 2).tags["gate_status"] == "rejected"
    lies = {"gate_status": "blessed", "bundle_digest": two_versions[0].digest, "stage": "production"}
    for name, value in lies.items():
        registry.tag("small", 2, name, value)
    registry.set_alias("small", "production", 2)
    assert differences(releases.registry, releases.log, "small") == [
        "stage of small 2 is 'production' in MLflow and 'staging' in the ledger",
        "gate_status of small 2 is 'blessed' in MLflow and 'rejected' in the ledger",
        "small@production is version 2 in MLflow and none in the ledger",
    ]
    with refuses(NotPromotable, "evaluation", "is rejected, not blessed", rejected.name):
        promote(releases, "small", 2, by=Person.unchecked("eve"), reason="the tag says so")
    assert releases.log.promotions("small") == []
    assert releases.in_production("small") is None
    assert registry.aliased("small", "production") is None
    show(releases.registry, releases.log, "small")
    assert differences(releases.registry, releases.log, "small") == []
    found = newest_data(releases, "small")
    assert found is not None
    assert found.number == 1


def test_a_version_made_by_hand_in_mlflow_is_evaluated_by_its_bundle(
    releases: Releases,
    registry: Registry,
    evaluate: Evaluate,
    run_id: str,
    two_versions: tuple[Bundle, Bundle],
    variant: Callable[..., Bundle],
) -> None:
    refused = variant(fingerprint="3" * 64)
    evaluate(refused, "rejected")
    client = open_client(registry.uri)
    tags = {"gate_status": "blessed", "bundle_digest": two_versions[0].digest}
    client.create_model_version("small", refused.address, run_id=run_id, tags=tags)
    client.create_model_version("small", "file:///somewhere/else", run_id=run_id, tags=tags)
    with refuses(NotPromotable, "evaluation", r"small 3 \(no semantic version\) is rejected"):
        promote(releases, "small", 3, by=Person.unchecked("eve"), reason="mine")
    with pytest.raises(VersionMissing, match=r"small version 4 .* no bundle"):
        promote(releases, "small", 4, by=Person.unchecked("eve"), reason="mine")


@pytest.mark.usefixtures("two_versions")
def test_folder_outside_the_store_is_no_bundle_whatever_its_name(
    releases: Releases, registry: Registry, run_id: str, tmp_path: Path
) -> None:
    """MLflow would serve whatever lies there under `models:/small@production`."""
    blessed = registry.version("small", 1).bundle_digest
    elsewhere = tmp_path / blessed
    client = open_client(registry.uri)
    client.delete_model_version("small", "1")
    for source in (elsewhere.as_uri(), f"{registry.bundles}/../{blessed}", blessed):
        number = int(client.create_model_version("small", source, run_id=run_id).version)
        with pytest.raises(VersionMissing, match=f"small version {number} .* no bundle"):
            promote(releases, "small", number, by=Person.unchecked("eve"), reason="mine")
    client.set_registered_model_alias("small", "production", str(number))
    assert releases.in_production("small") is None
    assert registry.aliased("small", "production") is None


def test_an_earlier_champion_can_come_back(
    releases: Releases, registry: Registry, evaluate: Evaluate, two_versions: tuple[Bundle, Bundle]
) -> None:
    """Later evaluations do not matter."""
    first = promote(releases, "small", 1, by=Person.unchecked("ada"), reason="first")
    evaluate(two_versions[1])
    promote(releases, "small", 2, by=Person.unchecked("ada"), reason="better")
    evaluate(two_versions[0], "rejected", told="on rows that version 2 has seen")
    back = promote(releases, "small", 1, by=Person.unchecked("bob"), reason="back: 2 is slow")
    assert back.evaluation_digest == first.evaluation_digest
    champion = releases.champion("small")
    assert champion is not None
    assert champion.digest == two_versions[0].digest
    tags = registry.version("small", 1).tags
    assert (tags["gate_status"], tags["evaluation"]) == ("blessed", first.evaluation_digest[:12])


def test_a_version_shows_the_evaluation_it_was_promoted_on(
    releases: Releases, registry: Registry, evaluate: Evaluate, two_versions: tuple[Bundle, Bundle]
) -> None:
    promoted_on = promote(releases, "small", 1, by=Person.unchecked("ada"), reason="first").evaluation_digest
    later = [evaluate(one, "undecided", told="later") for one in two_versions]
    show(releases.registry, releases.log, "small")
    shown = {one.number: one.tags for one in registry.versions("small")}
    assert (shown[1]["gate_status"], shown[1]["evaluation"]) == ("blessed", promoted_on[:12])
    assert (shown[2]["gate_status"], shown[2]["evaluation"]) == ("undecided", later[1].name)
    assert [one.status for one in releases.log.evaluations("small")] == ["blessed"] * 2 + ["undecided"] * 2


def test_unless_one_is_named_the_newest_data_is_promoted(
    releases: Releases,
    evaluate: Evaluate,
    run_id: str,
    two_versions: tuple[Bundle, Bundle],
    variant: Callable[..., Bundle],
) -> None:
    """A backfill of older data has the highest number."""
    older = variant(fingerprint="3" * 64)
    evaluate(older, partition="2013-06-30")
    register(releases, older, run_id=run_id, links={})

    def newest() -> int | None:
        found = newest_data(releases, "small")
        return None if found is None else found.number

    assert newest() == 2
    promote(releases, "small", 2, by=Person.unchecked("ada"), reason="newest")
    assert newest() == 2
    evaluate(two_versions[0])
    promote(releases, "small", 1, by=Person.unchecked("ada"), reason="2 is slow")
    assert newest() == 1, "2 was replaced: it has to be named"


def test_a_new_registry_does_not_take_new_versions_for_old_ones(
    releases: Releases,
    registry: Registry,
    evaluate: Evaluate,
    run_id: str,
    two_versions: tuple[Bundle, Bundle],
    variant: Callable[..., Bundle],
) -> None:
    """MLflow counts from 1 again after somebody deleted the model there."""
    promote(releases, "small", 1, by=Person.unchecked("ada"), reason="first")
    open_client(registry.uri).delete_registered_model("small")
    assert (releases.champion("small") or two_versions[1]).digest == two_versions[0].digest
    other = variant(fingerprint="3" * 64)
    evaluate(other)
    version = register(releases, other, run_id=run_id, links={})
    assert (version.number, version.semantic) == (2, "1.0.2"), "the ledger knows 1 for another bundle"
    standing = releases.in_production("small")
    assert standing is not None
    assert standing.bundle_digest == two_versions[0].digest
    assert registry.aliased("small", "production") is None
    again = register(releases, two_versions[0], run_id=run_id, links={})
    assert (again.number, again.semantic, again.tags["stage"]) == (3, "1.0.0", "production")
    assert registry.aliased("small", "production") == 3
    evaluate(other, told="beside the champion")
    promotion = promote(releases, "small", 2, by=Person.unchecked("ada"), reason="begin anew")
    assert promotion.bundle_digest == other.digest
    assert registry.aliased("small", "production") == 2


@pytest.mark.usefixtures("two_versions")
def test_a_moved_home_changes_nothing_in_mlflow(
    releases: Releases, registry: Registry, store: BundleStore, orders: OrdersTable, tmp_path: Path
) -> None:
    """The bundles lie elsewhere now, and MLflow has their old addresses."""
    promote(releases, "small", 1, by=Person.unchecked("ada"), reason="first")
    moved = BundleStore(FolderArtifacts(tmp_path / "moved"))
    shutil.copytree(store.root, moved.root, dirs_exist_ok=True)
    after = Releases(orders.ledger, Registry(registry.uri, moved.address), moved, orders.store)
    with pytest.raises(VersionMissing, match="ml-assets home move"):
        promote(after, "small", 2, by=Person.unchecked("ada"), reason="better")
    held = after.in_production("small")
    assert held is not None
    show(after.registry, after.log, "small")
    assert registry.aliased("small", "production") == 1
    (said,) = differences(after.registry, after.log, "small")
    assert f"bundle {held.bundle_digest[:12]} under {moved.address}" in said
    assert "ml-assets home move" in said


def _register_in_another_order(registry: Registry, run_id: str, bundles: tuple[Bundle, Bundle]) -> None:
    client = open_client(registry.uri)
    client.delete_registered_model("small")
    client.create_registered_model("small")
    for bundle in reversed(bundles):
        client.create_model_version("small", bundle.address, run_id=run_id)


def test_a_number_of_another_bundle_is_not_read(
    platform: Platform,
    releases: Releases,
    registry: Registry,
    run_id: str,
    two_versions: tuple[Bundle, Bundle],
) -> None:
    """`ml-assets dossier write small 2` recorded the bundle of version 1 under number 2. After that `promote small 2`
    put it into production, although a person had demoted it and approved another one under this number."""
    ada = Person.unchecked("ada")
    promote(releases, "small", 1, by=ada, reason="first")
    demote(releases, "small", by=ada, reason="wrong prices")
    archive(releases, "small", 2, by=ada, reason="private data")
    _register_in_another_order(registry, run_id, two_versions)
    for number in (1, 2):
        with pytest.raises(NumberReused):
            version_to_show(platform, "small", number)
        with pytest.raises(NumberReused):
            number_reader_of(platform).bundle("small", number)


def test_a_number_of_another_bundle_decides_nothing(
    releases: Releases, registry: Registry, run_id: str, two_versions: tuple[Bundle, Bundle], ledger: Ledger
) -> None:
    """Somebody registered the bundles in another order, so that 2 is the demoted bundle and 1 the archived one."""
    ada = Person.unchecked("ada")
    promote(releases, "small", 1, by=ada, reason="first")
    demote(releases, "small", by=ada, reason="wrong prices")
    archive(releases, "small", 2, by=ada, reason="private data")
    _register_in_another_order(registry, run_id, two_versions)
    before = ledger.models.head()
    for number in (1, 2):
        for decide in (
            lambda: promote(releases, "small", number, by=ada, reason="mine"),  # noqa: B023
            lambda: archive(releases, "small", number, by=ada, reason="mine"),  # noqa: B023
        ):
            with pytest.raises(NumberReused, match=f"small version {number} is bundle"):
                decide()
    assert ledger.models.head() == before


def test_what_cannot_be_promoted_is_refused_before_it_is_written(
    releases: Releases, two_versions: tuple[Bundle, Bundle], store: BundleStore
) -> None:
    with refuses(NotPromotable, "reason", "promoting small 1"):
        promote(releases, "small", 1, by=Person.unchecked("ada"), reason=" ")
    with pytest.raises(VersionMissing):
        promote(releases, "small", 3, by=Person.unchecked("ada"), reason="new")
    weights = two_versions[1].folder / "model.safetensors"
    content = weights.read_bytes()
    weights.unlink()
    try:
        with pytest.raises(BundleDamaged):
            promote(releases, "small", 2, by=Person.unchecked("ada"), reason="better")
    finally:
        weights.write_bytes(content)
    assert releases.log.promotions("small") == []


def test_the_champion_is_known_while_the_tracker_is_away(
    releases: Releases,
    orders: OrdersTable,
    store: BundleStore,
    two_versions: tuple[Bundle, Bundle],
    tmp_path: Path,
) -> None:
    promote(releases, "small", 1, by=Person.unchecked("ada"), reason="first")
    (tmp_path / "a file").touch()
    nowhere = Registry(f"sqlite:///{tmp_path / 'a file' / 'mlflow.db'}", store.address)
    away = Releases(orders.ledger, nowhere, store, orders.store)
    champion = away.champion("small")
    assert champion is not None
    assert champion.digest == two_versions[0].digest
    promotion = away.in_production("small")
    assert promotion is not None
    assert promotion.version == "1"


@pytest.mark.usefixtures("two_versions")
def test_a_decision_that_mlflow_does_not_show_yet_does_not_fail(
    releases: Releases,
    registry: Registry,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """MLflow went away after it had named the version: the command failed, and the version was in production."""

    def away(*_: object) -> None:
        raise TrackerUnavailable("MLflow does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(Registry, "set_alias", away)
        patch.setattr(Registry, "tag", away)
        assert promote(releases, "small", 1, by=Person.unchecked("ada"), reason="first").version == "1"
        assert archive(releases, "small", 2, by=Person.unchecked("ada"), reason="recalled").version == "2"
    assert "MLflow does not show the newest decision about small yet: MLflow does not answer" in caplog.text
    assert registry.aliased("small", "production") is None
    assert releases.in_production("small") is not None  # which also corrects the alias
    assert registry.aliased("small", "production") == 1
