"""The digest of a day: what happened, who has to act, and a page and one message each night."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg

from ml_assets.components.digest_asset import nightly_digest
from ml_assets.pipeline.digest_page import digest_page
from ml_assets.pipeline.nightly_digest import Line, Subjects, digest_of
from ml_assets.release.bundle_store import Bundle
from ml_assets.release.releases import Releases
from ml_assets.release.rules import ReleaseSection
from ml_assets_tests.release.conftest import Evaluate
from ml_assets_tests.resources.ledger_writer import NEW
from ml_assets_tests.resources.webhook_receiver import Receiver
from ml_assets_tests.tables.orders_table import ORDERS
from resources.mlflow_client import open_client
from resources.platform import Platform

SUBJECTS = Subjects(
    models={"small": ReleaseSection.model_validate({"approval": {}})},
    tables=(ORDERS,),
    fresh_within={ORDERS: timedelta(hours=30)},
)


def test_a_digest_says_what_happened_and_who_acts(
    platform: Platform,
    releases: Releases,
    evaluate: Evaluate,
    two_versions: tuple[Bundle, Bundle],
    run_id: str,
) -> None:
    releases.promote("small", 1, author="ada", reason="the first")
    evaluate(two_versions[1], "rejected", summary="Rejected: AUC is 0.61; at least 0.70 is asked.")
    platform.ledger.record_verdicts([replace(NEW, table=ORDERS, key="2013-02-01")])
    platform.tracker.record(run_id, {"worker_hours": 1.5})
    open_client(platform.tracker.uri).set_terminated(run_id, "FAILED")
    today = datetime.now(UTC).date()
    found = digest_of(platform, SUBJECTS, today)
    said = digest_page(found).to_markdown()
    assert "small: promoted version 1 (1.0.0), by ada: the first" in said
    assert "small 2013-12-31 – Rejected: AUC is 0.61; at least 0.70 is asked. Next:" in said
    assert found.rejected == (
        Line(
            what=f"{ORDERS} 2013-02-01 was rejected (842 rows)", next=f"ml-assets launch {ORDERS} 2013-02-01"
        ),
    )
    assert "failed: 1.5 worker hours" in found.trained[0].what
    assert found.trained[0].next.startswith("ml-assets launch small ")
    assert (found.spent, found.late, found.missing) == ({"worker_hours": 1.5}, (), ())
    later = digest_of(platform, SUBJECTS, today + timedelta(days=3), datetime.now(UTC) + timedelta(days=9))
    assert [line.what.split(":")[0] for line in later.late] == [f"{ORDERS} is late"]
    assert (later.evaluated, later.decided, later.trained, later.rejected) == ((), (), (), ())


def test_the_nightly_asset_has_a_page_and_sends_a_day_once(platform: Platform, receiver: Receiver) -> None:
    graph = nightly_digest(
        dg.Definitions(
            assets=[
                dg.AssetSpec(dg.AssetKey(["small", "production"]), metadata={"release": {"approval": {}}}),
            ]
        )
    )
    job = dg.Definitions.merge(graph, dg.Definitions(resources={"platform": platform})).resolve_job_def(
        "nightly_digest"
    )
    yesterday = (datetime.now(UTC).date() - timedelta(days=1)).isoformat()
    with dg.DagsterInstance.ephemeral() as instance:
        told = []
        for _ in range(2):
            result = job.execute_in_process(instance=instance, partition_key=yesterday)
            (event,) = result.get_asset_materialization_events()
            metadata = event.materialization.metadata
            assert "small version 2 waits for an approval" in str(metadata["digest"].value)
            assert (
                Path(str(metadata["report_file"].value).removeprefix("file://"))
                .read_text()
                .startswith("<!doc")
            )
            told.append(metadata["told"].value)
    assert told == ["the webhook", "nobody: the digest of this day was sent before"]
    (message,) = receiver.notices
    assert message["day"] == yesterday
    assert message["waiting"][0]["next"] == "ml-assets approve small 2 --reason '…'"
