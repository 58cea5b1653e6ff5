"""The digest of a day: what happened, who has to act, and a page and one message each night."""

import html
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient

from ml_assets.components.assets.digest import nightly_digest
from ml_assets.foundation.links import DIGESTS
from ml_assets.model.release.bundle_store import Bundle
from ml_assets.model.release.promotion import promote
from ml_assets.model.release.releases import Releases
from ml_assets.model.release.rules import Rules
from ml_assets.pages.digest import Line, Subjects, digest_of, digest_page
from ml_assets.pages.served import serving
from ml_assets_tests.release.conftest import Evaluate
from ml_assets_tests.resources.ledger_writer import NEW
from ml_assets_tests.resources.webhook_receiver import DRIPS, SILENT, Receiver
from ml_assets_tests.tables.orders_table import ORDERS
from resources.ledger import Person, RuleOutcome
from resources.platform import Platform
from resources.tracking.mlflow_client import open_client

SUBJECTS = Subjects(
    models={"small": Rules.model_validate({"approval": {}})},
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
    promote(releases, "small", 1, by=Person.unchecked("ada"), reason="the first")
    evaluate(two_versions[1], "rejected", summary="Rejected: AUC is 0.61; at least 0.70 is asked.")
    platform.ledger.record_verdicts([replace(NEW, table=ORDERS, key="2013-02-01")])
    platform.tracker.record(run_id, {"worker_hours": 1.5})
    open_client(platform.tracker.uri).set_terminated(run_id, "FAILED")
    today = datetime.now(UTC).date()
    found = digest_of(platform, SUBJECTS, today, ())
    said = digest_page(found).to_markdown()
    assert "small: promoted version 1 (1.0.0), by ada: the first" in said
    line = "* small 2013-12-31 – Rejected: AUC is 0.61; at least 0.70 is asked.\n\n      ml-assets history small\n"
    assert line in said
    assert found.rejected == (
        Line(
            what=f"{ORDERS} 2013-02-01 was rejected (842 rows)", next=f"ml-assets launch {ORDERS} 2013-02-01"
        ),
    )
    assert "failed: 1.5 worker hours" in found.trained[0].what
    assert found.trained[0].next.startswith("ml-assets launch small ")
    assert (found.spent, found.late, found.missing) == ({"worker_hours": 1.5}, (), ())
    later = digest_of(
        platform, SUBJECTS, today + timedelta(days=3), (), datetime.now(UTC) + timedelta(days=9)
    )
    assert [line.what.split(":")[0] for line in later.late] == [f"{ORDERS} is late"]
    assert (later.evaluated, later.decided, later.trained, later.rejected) == ((), (), (), ())


def test_a_rejection_names_each_failed_rule_with_its_margin(
    platform: Platform, evaluate: Evaluate, two_versions: tuple[Bundle, Bundle]
) -> None:
    """A person sees how far the model missed, and what would have passed, without the report."""
    facts = {"asks": "AUC at least 0.70", "would_pass": "0.70 or more, 0.09 above"}
    missed = RuleOutcome(rule="precise", slice="all rows", result="failed", found="AUC is 0.61", **facts)
    unsure = RuleOutcome(
        rule="better",
        slice="origin JFK",
        result="undecided",
        found="-0.01 to 0.02",
        **facts | {"would_pass": ""},
    )
    passed = RuleOutcome(rule="calm", slice="all rows", result="passed", found="0.1", **facts)
    evaluate(two_versions[1], "rejected", told="missed", rules=(missed, passed, unsure))
    found = digest_of(platform, SUBJECTS, datetime.now(UTC).date(), ())
    (line,) = [one for one in found.evaluated if "rejected" in one.what]
    assert line == Line(
        what="small 2013-12-31 is rejected: precise (all rows): AUC is 0.61; 0.70 or more, 0.09 above; "
        "better (origin JFK): -0.01 to 0.02",
        next="ml-assets history small",
    )


def test_each_command_of_a_digest_is_on_a_line_of_its_own(
    platform: Platform, two_versions: tuple[Bundle, Bundle]
) -> None:
    """A person copies the line, from a terminal, from Dagster's page or from the HTML page."""
    found = digest_of(platform, SUBJECTS, datetime.now(UTC).date(), ())
    commands = [line.next for lines in (found.waiting, found.evaluated, found.decided) for line in lines]
    assert {"ml-assets approve small 1 --reason '…'", "ml-assets history small"} <= {*commands}
    page = digest_page(found)
    markdown = [line.strip() for line in page.to_markdown().splitlines()]
    assert [line for line in markdown if line.startswith("ml-assets ")] == commands
    code = re.findall("<br><code>(.*?)</code></li>", page.to_html())
    assert [html.unescape(one) for one in code] == commands


def _nightly(platform: Platform) -> dg.JobDefinition:
    graph = nightly_digest(
        dg.Definitions(
            assets=[
                dg.AssetSpec(dg.AssetKey(["small", "production"]), metadata={"release": {"approval": {}}}),
            ]
        )
    )
    return dg.Definitions.merge(graph, dg.Definitions(resources={"platform": platform})).resolve_job_def(
        "nightly_digest"
    )


def _made(job: dg.JobDefinition, instance: dg.DagsterInstance, day: str) -> dict[str, Any]:
    """Run the job for a day; return what the asset's page shows."""
    result = job.execute_in_process(instance=instance, partition_key=day)
    (event,) = result.get_asset_materialization_events()
    return {name: one.value for name, one in event.materialization.metadata.items()}


YESTERDAY = (datetime.now(UTC).date() - timedelta(days=1)).isoformat()


@pytest.mark.parametrize(
    ("status", "why"), [(500, "HTTPError 500"), (SILENT, "TimeoutError"), (DRIPS, "TimeoutError")]
)
def test_a_webhook_that_refuses_or_hangs_fails_no_digest(
    platform: Platform, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, status: int, why: str
) -> None:
    """The time limit of a socket begins anew with each byte, so an answer that drips held the night's run up."""
    monkeypatch.setattr("resources.web.webhook.PAUSE_SECONDS", 0)
    monkeypatch.setattr("resources.web.webhook.PATIENCE_SECONDS", 0.2)
    receiver.status = status
    with dg.DagsterInstance.ephemeral() as instance:
        shown = _made(_nightly(platform), instance, YESTERDAY)
    assert shown["told"] == f"the webhook at 127.0.0.1 did not take it in 3 tries ({why})"
    assert "small version 2 waits for an approval" in shown["digest"]
    assert receiver.tries == 3


def test_the_address_of_a_digest_leads_to_its_page(platform: Platform) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        shown = _made(_nightly(platform), instance, YESTERDAY)
    assert shown["report"] == f"/digests/{YESTERDAY}/report.html"
    pages = Starlette(routes=[Route("/digests/{path:path}", serving(platform.artifacts, DIGESTS))])
    page = TestClient(pages).get(shown["report"])
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert f"<h1>Digest of {YESTERDAY}</h1>" in page.text
    assert "<code>ml-assets approve small 2 --reason" in page.text


def test_the_nightly_asset_has_a_page_and_sends_a_day_once(platform: Platform, receiver: Receiver) -> None:
    job = _nightly(platform)
    with dg.DagsterInstance.ephemeral() as instance:
        told = []
        for _ in range(2):
            shown = _made(job, instance, YESTERDAY)
            assert "small version 2 waits for an approval" in shown["digest"]
            assert Path(shown["report_file"].removeprefix("file://")).read_text().startswith("<!doc")
            told.append(shown["told"])
    assert told == ["the webhook", "nobody: the digest of this day was sent before"]
    (message,) = receiver.notices
    assert message["day"] == YESTERDAY
    assert message["waiting"][0]["next"] == "ml-assets approve small 2 --reason '…'"
