"""Homes of releases: a checkout with the pipeline `parcels`, the facts of a home, and its packed file.

Here: what the writer of a home (`make_home`) and the tests share. A kept home is `VERSION.tar.xz`, and `VERSION.json`
beside it has its facts, as the release that wrote it read them.
"""

import hashlib
import json
import shutil
import sqlite3
import tarfile
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from datetime import date, datetime
from pathlib import Path
from typing import Any

import polars as pl

from ml_assets.data.tables.reader import TableReader
from ml_assets.foundation.checkout import ROOT
from ml_assets.model.release.releases import registry_of
from ml_assets_tests.tour.pages import Checkout
from resources.ledger import Ledger
from resources.platform import Platform
from resources.settings import Settings

FOLDER = Path(__file__).parent
PIPELINE = FOLDER / "parcels"
MODEL = "parcels"
LEFT_OUT: Mapping[str, str] = {
    "artifacts/mlflow": "files of MLflow's runs: copies of reports and settings",
    "artifacts/reports": "pages of evaluations; the ledger has their figures",
    "artifacts/sources": "code of the trainings, for `ml-assets reproduce`",
    "artifacts/training": "checkpoints of trainings that are over",
    "cache": "copies of snapshots",
    "dagster/storage": "logs of steps",
    "ledger.db.turns": "locks",
}
"""Folder of a home that is not kept → what it holds. Later versions read it only to show it, or write it again."""


def parcels_checkout(folder: Path) -> Checkout:
    """Return a copy of the project in `folder` whose only pipeline is `parcels`."""
    checkout = Checkout.in_folder(folder)
    shutil.copytree(PIPELINE, checkout.folder / "ml_assets" / "defs" / PIPELINE.name)
    return checkout


def pack(home: Path, file: Path) -> None:
    """Write `home` without `LEFT_OUT` into a `.tar.xz`, without names of this machine's users and folders."""
    # Errors of runs have tracebacks, which name the checkout.
    with closing(sqlite3.connect(home / "dagster" / "history" / "event_log.db")) as events:
        events.execute("UPDATE event_logs SET event = replace(event, ?, ?)", (str(ROOT), "/project"))
        events.commit()
        events.execute("VACUUM")

    def kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return None if entry.name.removeprefix("home/") in LEFT_OUT else entry

    with tarfile.open(file, "w:xz") as packed:
        packed.add(home, "home", filter=kept)


def unpack(version: str, home: Path) -> None:
    """Write the home of a release to `home`, which must not exist."""
    with tarfile.open(FOLDER / f"{version}.tar.xz") as packed:
        packed.extractall(home.parent / f"{home.name}-packed", filter="data")
    (home.parent / f"{home.name}-packed" / "home").rename(home)


def kept_facts(version: str) -> dict[str, Any]:
    """Return the facts of the home of a release, as that release read them."""
    return json.loads((FOLDER / f"{version}.json").read_text())


def revision_of(home: Path) -> str | None:
    """Return the schema revision of the ledger's file, which stays as it is."""
    return Ledger(f"sqlite:///{home / 'ledger.db'}").revision()


def facts_of(home: Path) -> dict[str, Any]:
    """Return what a home holds, as values of JSON: tables by content, verdicts, decisions, versions.

    Rows are digested by their values alone, so neither the format of a file nor that of a manifest counts.
    """
    platform = Platform(Settings(home=home))
    ledger, reader = platform.ledger, TableReader.at(platform.lake, "main")
    held = ledger.models.in_production(MODEL)
    return {
        "tables": {
            table: {
                key: {
                    "digest": digest,
                    "rows": reader.manifest(table, key).rows,
                    "values": _values_digest(reader.scan(table, [key]).collect()),
                }
                for key, digest in reader.digests(table).items()
            }
            for table in reader.tables()
        },
        "verdicts": {
            table: {
                key: [one.status for one in ledger.histories(table, [key]).get(key, [])]
                for key in reader.keys(table)
            }
            for table in reader.tables()
        },
        "acceptances": [
            [one.table, one.key, one.number, one.author, one.reason, one.at.isoformat()]
            for one in ledger.acceptances()
        ],
        "chain": asdict(ledger.models.verify()),
        "decisions": [
            [type(one).__name__, one.at.isoformat(), getattr(one, "bundle_digest", ""), *_authored(one)]
            for one in ledger.models.decisions(MODEL)
        ],
        "production": None if held is None else [held.version, held.bundle_digest, held.reason],
        "names": {one.bundle_digest: one.semantic for one in ledger.models.names(MODEL)},
    }


def versions_of(home: Path) -> dict[str, str]:
    """Return number → digest of the bundle, of the versions that MLflow finds in this home."""
    found = registry_of(Platform(Settings(home=home))).versions(MODEL)
    return {str(one.number): one.bundle_digest for one in found}


def _values_digest(rows: pl.DataFrame) -> str:
    written = json.dumps([rows.columns, rows.rows()], default=_as_text)
    return hashlib.sha256(written.encode()).hexdigest()


def _as_text(value: date | datetime) -> str:
    return value.isoformat()


def _authored(decision: object) -> list[str]:
    return [str(getattr(decision, name)) for name in ("author", "reason") if hasattr(decision, name)]
