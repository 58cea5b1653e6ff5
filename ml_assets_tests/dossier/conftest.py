"""Two small signed dossiers of one model, in folders that a test may copy and damage, and the ledger behind them."""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from ml_assets.extras.governance.dossier.documents import (
    BUNDLE,
    CARD,
    CARD_PAGE,
    CODE_DIFFERENCE,
    EVALUATION,
    DossierFacts,
    TableBehind,
)
from ml_assets.extras.governance.dossier.signature import SigningKey
from ml_assets.extras.governance.dossier.verification import decisions_about, write
from ml_assets.model.release.runtime import listing_of
from ml_assets.model.release.signing_keys import create_keys
from resources.ledger import Ledger, NewEvaluation, Person, TrainedOn

LOCK_TEXT = (
    f"numpy==2.4.0 \\\n    --hash=sha256:{'1' * 64} \\\n    --hash=sha256:{'2' * 64}\n"
    f"torch==2.11.0+cpu ; python_version >= '3.11' \\\n    --hash=sha256:{'3' * 64}\n"
)


@dataclass(frozen=True)
class Signed:
    """Two dossiers, their key and their ledger, which the tests share."""

    first: Path
    """Exported dossier of version 1."""
    second: Path
    """Exported dossier of version 2, signed with the same key."""
    key: SigningKey
    ledger: Path
    """SQLite file with the decisions about both versions, and later ones."""


@pytest.fixture(scope="session")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Signed:
    place = tmp_path_factory.mktemp("dossiers")
    key, ledger = create_keys(place / "keys"), Ledger(f"sqlite:///{place / 'ledger.db'}")
    first, second = (make_dossier(place / f"m-{number}", number, ledger, key) for number in (1, 2))
    promote(ledger, "later", bundle="9" * 64)
    return Signed(first, second, key, place / "ledger.db")


@pytest.fixture
def copied(signed: Signed, tmp_path: Path) -> Path:
    """A copy of the dossier of version 1 that a test may damage."""
    return Path(shutil.copytree(signed.first, tmp_path / "copy"))


@pytest.fixture
def ledger_file(signed: Signed, tmp_path: Path) -> Path:
    """A copy of the ledger that a test may damage."""
    return Path(shutil.copyfile(signed.ledger, tmp_path / "ledger.db"))


@pytest.fixture(scope="session")
def facts_of_first(signed: Signed) -> Callable[[], tuple[DossierFacts, dict[str, str]]]:
    """Facts and documents of version 1, to write a dossier with other ones."""
    return lambda: facts_of(signed.first / BUNDLE, 1, Ledger(f"sqlite:///{signed.ledger}"))


def make_dossier(folder: Path, number: int, ledger: Ledger, key: SigningKey) -> Path:
    """Write a bundle, its decisions in `ledger`, and its dossier."""
    bundle = folder / BUNDLE
    bundle.mkdir(parents=True)
    (bundle / "model.onnx").write_bytes(bytes(range(256)) * number)
    (bundle / "model.safetensors").write_bytes(bytes(range(255, -1, -1)) * number)
    (bundle / "golden.parquet").write_bytes(b"PAR1" + bytes([number]) * 64)
    (bundle / "runtime.py").write_text("# code of the runtime\n")
    (bundle / "MLmodel").write_text("flavors: {}\n")
    (bundle / "bundle.json").write_text(json.dumps({"lineage": lineage_of(number), "metrics": {"auc": 0.75}}))
    (bundle / "files.sha256").write_text(listing_of(bundle, [path.name for path in bundle.iterdir()]))
    digest = digest_of(bundle)
    log = ledger.models
    row = log.record_evaluation(
        NewEvaluation(
            model="m",
            partition="2013-12-31",
            bundle_digest=digest,
            evaluation_digest=hashlib.sha256(evaluation_text(digest).encode()).hexdigest(),
            champion_digest=None,
            status="blessed",
            summary="Blessed: all 5 rules passed.",
            rules=(),
            by=Person.unchecked("ada"),
            report="file:///reports/report.html",
            run_id="a-run",
            trained_on=TrainedOn(
                commit=f"{number}" * 40,
                table="features/f",
                first="2013-01-01",
                last="2013-12-31",
                partitions=365,
            ),
        )
    )
    log.name_version(
        "m", digest, schema_digest="s", recipe_digest="r", choose=lambda known: f"1.0.{len(known)}"
    )
    log.review(row, str(number), approves=True, by=Person.unchecked("bob"), reason="reads well")
    promote(ledger, str(number), bundle=digest, evaluation=row.evaluation_digest)
    facts, documents = facts_of(bundle, number, ledger)
    write(folder, facts, documents, key)
    return folder


def promote(ledger: Ledger, version: str, *, bundle: str, evaluation: str = "e") -> None:
    """Record a promotion."""
    ledger.models.promote(
        "m",
        version,
        "production",
        by=Person.unchecked("cy"),
        reason="better",
        bundle_digest=bundle,
        evaluation_digest=evaluation,
    )


def facts_of(
    bundle: Path, number: int, ledger: Ledger, model: str = "m"
) -> tuple[DossierFacts, dict[str, str]]:
    """Return the facts of a dossier, and its other documents."""
    digest = digest_of(bundle)
    row = ledger.models.newest_evaluation(model, digest)
    assert row is not None
    launch = {
        "at": "2026-11-23T10:00:00.000001+00:00",
        "run_id": "a-run",
        "author": "ada",
        "checked_by": "nobody",
        "commit": "c" * 40,
        "is_dirty": True,
        "difference": hashlib.sha256(b"a difference").hexdigest(),
        "left_out": [],
        "lock": "l" * 64,
        "packages": {"torch": "2.11.0", "dagster": "1.12.0"},
        "python": "3.11.9",
        "machine": "Linux x86_64, 2 cores",
        "workers": 2,
    }
    facts = DossierFacts(
        model=model,
        number=number,
        semantic=f"1.0.{number - 1}",
        partition="2013-12-31",
        description="Delays of flights.",
        objective="binary",
        label="late",
        inputs=("hour", "carrier"),
        metrics={"auc": 0.75, "log_loss": 0.48},
        intended_use="planning",
        not_intended_for=("pricing",),
        bundle=digest,
        listing=(bundle / "files.sha256").read_text(),
        lineage=json.loads((bundle / "bundle.json").read_text())["lineage"],
        evaluation={**asdict(row), "at": row.at.isoformat()},
        lake="local",
        tables=(TableBehind(name="datasets/flights", partitions=365, digest="7" * 64),),
        launches=(launch,),
        decisions=decisions_about(ledger, model, digest),
        lock=LOCK_TEXT,
        files={CODE_DIFFERENCE: b"a difference"},
    )
    return facts, {CARD: "# Model card: m\n", CARD_PAGE: "<h1>m</h1>\n", EVALUATION: evaluation_text(digest)}


def lineage_of(number: int) -> dict[str, Any]:
    """Return the lineage in `bundle.json` of a version."""
    return {
        "model": "m",
        "fingerprint": f"{number}" * 64,
        "snapshot_digest": f"{number + 2}" * 64,
        "label": "late",
        "code_version": "abc-def",
        "weights_sha256": f"{number + 4}" * 64,
        "configuration": {"seed": number},
    }


def evaluation_text(bundle: str) -> str:
    """Return the content of `evaluation.json`."""
    return json.dumps({"title": "m", "lineage": {"bundle": bundle}, "auc": 0.75})


def digest_of(bundle: Path) -> str:
    """Return the digest of a bundle."""
    return hashlib.sha256((bundle / "files.sha256").read_bytes()).hexdigest()
