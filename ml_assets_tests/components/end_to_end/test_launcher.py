"""Evaluations of runs that a person launched in Dagster's pages: the person is the author, and another one approves."""

from pathlib import Path

import pytest
from pydantic import SecretStr

from ml_assets.components import TrainingPipeline
from ml_assets.components.metadata import BACKFILL
from ml_assets.model.release.releases import NotReviewable, releases_of
from ml_assets.model.release.reviews import review
from ml_assets_tests.components.installation import STAGES, Installation, approved_readings, facts_of
from ml_assets_tests.components.readings_pipeline import MODEL, WINDOW, days
from ml_assets_tests.resources.ledger_writer import with_account

FIRST, SECOND = days(2, start=WINDOW)


def test_whoever_launched_in_the_pages_is_the_author(tmp_path: Path) -> None:
    """The process has an account of its own, which `release.approval` need not trust."""
    components = approved_readings()
    before = Installation(tmp_path / "home", components)
    ledger = before.platform.ledger
    root, ann, bob = (with_account(ledger, name) for name in ("root", "ann", "bob"))
    token = ledger.accounts.add_by_token("svc", root)
    settings = before.settings.model_copy(update={"token": SecretStr(token)})
    installation = Installation(before.settings.home, components, settings).with_tables(2)
    [rules] = [one.spec.rules for one in components if isinstance(one, TrainingPipeline)]
    releases = releases_of(installation.platform)
    ledger.launches.record(["backfill-1"], ann, "launchPartitionBackfill")

    facts_of(installation.run(*STAGES, partition=FIRST, **{BACKFILL: "backfill-1"}), FIRST)
    [row] = ledger.models.evaluations(MODEL)
    assert (row.by, row.launched_in, row.proof) == (ann, "pages", 2)
    with pytest.raises(NotReviewable, match="ann ran its evaluation"):
        review(releases, MODEL, 1, approves=True, by=ann, reason="mine", rules=rules)
    assert review(releases, MODEL, 1, approves=True, by=bob, reason="read", rules=rules).author == "bob"

    facts_of(installation.run(*STAGES, partition=SECOND), SECOND)
    row = ledger.models.evaluations(MODEL)[-1]
    assert (row.author, row.launched_in, row.proof) == ("svc", "dagster", 1)
    with pytest.raises(NotReviewable, match="nobody knows who launched it"):
        review(releases, MODEL, 2, approves=True, by=bob, reason="read", rules=rules)
