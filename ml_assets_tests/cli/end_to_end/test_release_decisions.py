"""Decisions about releases as people type them: canary, evidence against it, archival, two reviewers; and `verify` of
what does not exist."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from ml_assets.model.release.releases import registry_of
from ml_assets.model.release.rules import ReleaseSection
from ml_assets.model.release.signing_keys import create_keys
from ml_assets.use.serving.canary import is_of_canary
from ml_assets.use.serving.request_log import LoggedRow, RequestLog
from ml_assets_tests.cli.terminal import Terminal
from ml_assets_tests.release.conftest import rows
from ml_assets_tests.serving.released import MODEL, platform_of, register
from resources.tracking.mlflow_client import TrackerRefused
from resources.tracking.tracker import RunFacts

__all__ = ["rows"]

SHARE = 0.4
WATCHED = ReleaseSection.model_validate(
    {
        "canary": {
            "share": SHARE,
            "by": ["store"],
            "watch": [{"metric": "error_rate", "no_worse_by": 0.02}],
        }
    }
)
REVIEWED = ReleaseSection.model_validate({"approval": {}})


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, _empty_tracker: Path, rows: pl.DataFrame) -> Terminal:
    """A home with version 1 in production and version 2 evaluated against it; both evaluations are by `ada`."""
    made = tmp_path_factory.mktemp("decisions")
    (made / "mlflow.db").write_bytes(_empty_tracker.read_bytes())
    terminal, platform = Terminal(made, "bob"), platform_of(made)
    register(platform, rows, "1")
    said = terminal("promote", MODEL, "--reason", "first model")
    assert said.status == 0, said.err
    register(platform, rows, "2")
    return terminal


def log_failing_canary(terminal: Terminal) -> None:
    """Log 600 requests as a server would; two fifths of the canary's end with an error."""
    platform = platform_of(terminal.home)
    log = platform.ledger.models
    champion = log.in_production(MODEL)
    canary = log.in_production(MODEL, "canary")
    assert champion is not None
    assert canary is not None
    begin = int(datetime.now(UTC).timestamp() * 1e6)

    def logged(number: int) -> LoggedRow:
        entity = json.dumps([f"store {number}"])
        to_canary = is_of_canary(
            entity,
            secret=b"servers",
            model=MODEL,
            bundle_digest=canary.bundle_digest,
            begun=canary.at,
            share=SHARE,
        )
        role, by = ("canary", canary) if to_canary else ("production", champion)
        fails = to_canary and number % 10 < 4
        return LoggedRow(
            request_id=f"{number:08d}",
            place=0,
            at_us=begin + number,
            model=MODEL,
            version=int(by.version),
            bundle_digest=by.bundle_digest,
            role=role,
            assigned=role,
            request_rows=1,
            entity=entity,
            row=b"{}",
            prediction=None if fails else [1.0],
            latency_us=1000,
            error="RuntimeError: lost" if fails else None,
        )

    with RequestLog(platform.artifacts) as requests:
        requests.add([logged(number) for number in range(600)])


def put_in_force(terminal: Terminal, redeclared: Callable[..., None], rules: ReleaseSection) -> None:
    redeclared(release=rules)
    said = terminal.named("lead")("rules", "accept", MODEL, "--reason", "from now on")
    assert said.status == 0, said.err


def test_a_canary_with_evidence_against_it_is_not_promoted(
    home: Terminal, redeclared: Callable[..., None]
) -> None:
    put_in_force(home, redeclared, WATCHED)
    first = home("promote", MODEL, "2", "--reason", "newer data")
    assert first.out.startswith(f"{MODEL} version 2 is the canary since "), first.err
    assert f"ml-assets promote {MODEL} 2 --reason '…'" in first.out
    log_failing_canary(home)
    before = home("history", MODEL).out
    refused = home("promote", MODEL, "2", "--reason", "it looks fine")
    assert refused.status == 1
    assert "as canary it is worse than the champion by more than allowed: error_rate" in refused.err
    assert f"To take it back: ml-assets demote {MODEL} --canary --reason '…'" in refused.err
    # Which entities are the canary's depends on its promotion, and so do the counts.
    figures = r"error_rate: worse; canary 0\.\d+ on \d+ \w+, champion 0 on \d+ *\w*; allowed difference 0\.02"
    assert re.search(figures, refused.err), refused.err
    assert home("history", MODEL).out == before
    assert home("demote", MODEL, "--canary", "--reason", "it fails").status == 0


def test_an_archived_version_is_never_promoted_again(
    home: Terminal, rows: pl.DataFrame, redeclared: Callable[..., None]
) -> None:
    put_in_force(home, redeclared, ReleaseSection())
    refused = home("archive", MODEL, "1", "--reason", "old")
    assert (refused.status, "is in production and cannot be archived" in refused.err) == (1, True)
    register(platform_of(home.home), rows, "3")
    archived = home("archive", MODEL, "3", "--reason", "wrong labels")
    assert archived.out.startswith(f"{MODEL} version 3 is archived since "), archived.err
    assert archived.out.endswith("by bob: wrong labels\n")
    refused = home("promote", MODEL, "3", "--reason", "again")
    assert (refused.status, "archived" in refused.err) == (1, True)
    assert "archived    version 3 (" in home("history", MODEL).out


def test_a_version_that_breaks_clients_is_told_or_refused(
    home: Terminal, rows: pl.DataFrame, redeclared: Callable[..., None]
) -> None:
    register(platform_of(home.home), rows, "4", numeric=["hour", "distance", "delay"])
    breaks = "it needs the column 'delay' (numeric, float64), which clients do not send"
    put_in_force(home, redeclared, ReleaseSection(signature="compatible"))
    refused = home("promote", MODEL, "4", "--reason", "one column more")
    assert (refused.status, breaks in refused.err) == (1, True)
    put_in_force(home, redeclared, ReleaseSection())
    promoted = home("promote", MODEL, "4", "--reason", "one column more")
    assert f"Clients of the version before must change: {breaks}." in promoted.out, promoted.err
    assert home("rollback", MODEL, "--reason", "clients are not ready").status == 0


def test_the_second_of_two_reviewers_is_told(home: Terminal, redeclared: Callable[..., None]) -> None:
    """`bob` and `eve` read the same evaluation. A rejection after an approval takes it back, and stands."""
    put_in_force(home, redeclared, REVIEWED)
    assert home("approve", MODEL, "2", "--reason", "read it").status == 0
    second = home.named("eve")("approve", MODEL, "2", "--reason", "me too")
    assert second.out.startswith(f"Nothing changed: {MODEL} version 2 was approved before this command.")
    assert "by bob" in second.out
    assert home.named("eve")("reject", MODEL, "2", "--reason", "prices are wrong").status == 0
    told = home("approve", MODEL, "2", "--reason", "still fine")
    assert told.status == 1
    assert "was rejected by eve at " in told.err
    assert "prices are wrong. A rejection of an evaluation stands" in told.err
    promoted = home("promote", MODEL, "2", "--reason", "fine")
    assert (promoted.status, "it was rejected by eve" in promoted.err) == (1, True)


@pytest.mark.parametrize(
    ("typed", "as_version"),
    [
        (f"{MODEL}/9", f"{MODEL} has no version 9; it has 1 (1.0.0)"),
        ("exported/2024", "store_demand"),
    ],
)
def test_what_is_neither_folder_nor_version_is_told_for_both(
    home: Terminal, tmp_path: Path, typed: str, as_version: str
) -> None:
    """A folder may have a number as its name."""
    create_keys(tmp_path)
    refused = home("verify", typed, "--key", str(tmp_path / "signing.pub.pem"))
    assert refused.status == 1
    said, _, version = refused.err.partition(" As MODEL/VERSION: ")
    assert said == (
        f"Error: {typed} is neither a folder nor a registered version. As a folder, it does not exist: give the one "
        "that ml-assets dossier export wrote."
    )
    assert as_version in version


def test_a_moved_home_finds_its_versions_by_digest(home: Terminal, tmp_path: Path) -> None:
    """A home restored from a backup beside the original, which stays as it is."""
    training = RunFacts(experiment="other", fingerprint="f" * 64, name="a training", author="ada")
    with platform_of(home.home).tracker.start(training):
        pass
    restored = replace(home, home=tmp_path / "restored")
    shutil.copytree(home.home, restored.home)
    original = (home.home / "mlflow.db").read_bytes()
    ill = restored("doctor")
    assert ill.status == 1
    assert "was moved, or is a restored copy" in ill.out
    before = restored("history", MODEL).out
    for command in (
        ("archive", MODEL, "2", "--reason", "private"),
        ("promote", MODEL, "1", "--reason", "again"),
    ):
        refused = restored(*command)
        assert refused.status == 1
        assert "ml-assets home move" in refused.err
    with pytest.raises(TrackerRefused, match="the home was moved"):
        platform_of(restored.home).tracker.start(training)
    assert restored("history", MODEL).out == before
    said = restored("home", "move")
    assert said.status == 0, said.err
    assert (
        f"{(home.home / 'artifacts').as_uri()}, and now under {(restored.home / 'artifacts').as_uri()}"
        in said.out
    )
    assert restored("home", "move").out == "MLflow has the addresses of today: nothing to move\n"
    versions = registry_of(platform_of(restored.home)).versions(MODEL)
    assert [one.number for one in versions] == [
        one.number for one in registry_of(platform_of(home.home)).versions(MODEL)
    ]
    assert restored("history", MODEL).out == before
    assert (home.home / "mlflow.db").read_bytes() == original


def test_a_version_without_its_bundle_keeps_its_address(home: Terminal, tmp_path: Path) -> None:
    """The backup lacks a bundle, and has another one under its name."""
    restored = replace(home, home=tmp_path / "restored")
    shutil.copytree(home.home, restored.home)
    first, second = (
        restored.home / "artifacts" / "bundles" / one.bundle_digest
        for one in registry_of(platform_of(home.home)).versions(MODEL)[:2]
    )
    shutil.rmtree(second)
    shutil.copytree(first, second)
    said = restored("home", "move")
    assert said.status == 1
    assert f"Without their bundle, so with their old address: {MODEL}/2." in said.out
    found = {one.number: one.bundle_digest for one in registry_of(platform_of(restored.home)).versions(MODEL)}
    assert found[1] == first.name
    assert 2 not in found
