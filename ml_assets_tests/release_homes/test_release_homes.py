"""A home that an earlier release wrote works with today's code: `docs/how-to/releasing-the-platform.md`.

Each kept home is unpacked at another place than the one where it was written, as after a move or a restored backup.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ml_assets.data.tables.reader import TableReader
from ml_assets.model.release.releases import bundles_of
from ml_assets.model.release.runtime import GOLDEN, GOLDEN_OUTPUT, ServingModel, load_module
from ml_assets_tests.release_homes.kept_home import (
    FOLDER,
    LEFT_OUT,
    MODEL,
    facts_of,
    kept_facts,
    parcels_checkout,
    revision_of,
    unpack,
    versions_of,
)
from ml_assets_tests.release_homes.make_home import NEXT_DAY
from ml_assets_tests.resources.next_ledger_version import NEXT, next_version
from resources.ledger.migrations import NEWEST
from resources.platform import Platform
from resources.settings import Settings

RELEASES = sorted(path.name.removesuffix(".tar.xz") for path in FOLDER.glob("*.tar.xz"))
COMMANDS = (
    "ml-assets doctor",
    "ml-assets home move",
    "ml-assets doctor",
    f"ml-assets history {MODEL}",
    "ml-assets quarantine list",
    f"ml-assets launch datasets/parcels {NEXT_DAY}",
    f"ml-assets launch features/parcels {NEXT_DAY}",
)


@dataclass(frozen=True)
class KeptHome:
    """A home of a release, and what that release found in it."""

    release: str
    home: Path
    kept: dict[str, Any]


@pytest.fixture(scope="module", params=RELEASES)
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> KeptHome:
    """A home that no test changes but by opening it."""
    home = tmp_path_factory.mktemp("kept") / "home"
    unpack(request.param, home)
    return KeptHome(request.param, home, kept_facts(request.param))


def test_each_release_keeps_one_small_home() -> None:
    assert "0.1.0" in RELEASES
    assert [path.stem for path in sorted(FOLDER.glob("*.json"))] == RELEASES
    assert [one for one in RELEASES if (FOLDER / f"{one}.tar.xz").stat().st_size > 500_000] == []


def test_its_ledger_goes_to_the_newest_revision_at_the_first_use(opened: KeptHome, tmp_path: Path) -> None:
    unpack(opened.release, tmp_path / "home")
    assert revision_of(tmp_path / "home") == opened.kept["revision"]
    Platform(Settings(home=tmp_path / "home")).ledger.models.verify()
    assert revision_of(tmp_path / "home") == NEWEST


def test_the_next_revision_of_the_ledger_keeps_its_rows(opened: KeptHome, tmp_path: Path) -> None:
    home = tmp_path / "home"
    unpack(opened.release, home)
    with next_version(tmp_path):
        found = facts_of(home)
        assert revision_of(home) == NEXT
    assert found == {name: opened.kept[name] for name in found}


def test_today_reads_what_that_release_wrote(opened: KeptHome) -> None:
    """Rows, digests, verdicts, acceptances, decisions, the head of the hash chain, the version in production."""
    found = facts_of(opened.home)
    assert found == {name: opened.kept[name] for name in found}
    assert json.loads(json.dumps(found)) == found


def test_it_has_one_of_each_that_a_migration_may_lose(opened: KeptHome) -> None:
    verdicts = opened.kept["verdicts"]["datasets/parcels"]
    assert {one for numbers in verdicts.values() for one in numbers} == {"passed", "warned", "accepted"}
    assert [one[1] for one in opened.kept["acceptances"]] == ["2024-01-08"]
    kinds = [kind for kind, *_ in opened.kept["decisions"]]
    assert kinds.count("EvaluationRow") == len(opened.kept["versions"]) == 2
    assert kinds.count("Promotion") == 3
    assert opened.kept["production"][0] == "1"
    assert opened.kept["tables"].keys() == {
        "datasets/parcels",
        "features/parcels",
        "parcels/predictions",
        "quarantine/datasets_parcels",
    }


def test_partitions_agree_with_their_manifests(opened: KeptHome) -> None:
    reader = TableReader.at(Platform(Settings(home=opened.home)).lake, "main")
    for table in reader.tables():
        keys = reader.keys(table)
        manifests, faults = reader.checked_manifests(table, keys)
        assert (sorted(manifests), faults) == (keys, {})


def test_its_bundles_score_their_golden_rows(opened: KeptHome) -> None:
    """Loading replays them in each way to call a model: by today's runtime, which loads the champion of an evaluation,
    and by the bundle's own, which MLflow runs."""
    bundles = bundles_of(Platform(Settings(home=opened.home)))
    for digest in opened.kept["versions"].values():
        folder = bundles.open(digest).folder
        golden = pl.read_parquet(folder / GOLDEN)
        for loaded in (ServingModel, load_module(folder / "runtime.py", "runtime").ServingModel):
            predicted = loaded.load(folder).predict(golden.drop(GOLDEN_OUTPUT))
            assert predicted == pytest.approx(golden[GOLDEN_OUTPUT].to_numpy(), abs=1e-5)


@pytest.mark.timeout(600)
def test_commands_work_on_it_and_it_grows(opened: KeptHome, tmp_path: Path) -> None:
    checkout = parcels_checkout(tmp_path)
    unpack(opened.release, checkout.home)
    ill, moved, well, history, quarantine, *built = checkout.answers(COMMANDS)
    failed = [line.split()[1] for line in ill[1].splitlines() if line.startswith("FAIL")]
    assert (ill[0], failed) == (1, ["registry"]), ill[1]
    assert "ml-assets home move" in ill[1]
    assert (moved[0], f"{len(opened.kept['versions'])} versions" in moved[1]) == (0, True), moved[1]
    assert (well[0], "FAIL" in well[1]) == (0, False), well[1]
    assert versions_of(checkout.home) == opened.kept["versions"]
    for _, at, _, *authored in opened.kept["decisions"]:
        assert all(text in history[1] for text in (at[:19].replace("T", " "), *authored)), history[1]
    assert (quarantine[0], "2024-01-05" in quarantine[1]) == (0, True), quarantine[1]
    assert [status for status, _ in built] == [0, 0], built
    grown = facts_of(checkout.home)["tables"]
    for table, partitions in opened.kept["tables"].items():
        assert {key: grown[table][key] for key in partitions} == partitions
    assert NEXT_DAY in grown[f"features/{MODEL}"]


def test_folders_that_are_not_kept_are_not_in_it(opened: KeptHome) -> None:
    assert [name for name in LEFT_OUT if name != "ledger.db.turns" and (opened.home / name).exists()] == []
