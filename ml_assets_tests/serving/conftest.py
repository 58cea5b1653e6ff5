"""Servers over one small model: a ledger, a store with three versions of it, and a client without a network."""

from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import onnx
import polars as pl
import pytest
from starlette.testclient import TestClient

from ml_assets.model.release.bundle import build_bundle
from ml_assets.model.release.bundle_store import Bundle, BundleStore
from ml_assets.model.release.known_versions import StageReader
from ml_assets.model.release.onnx_graph import MatrixGraph
from ml_assets.model.release.rules import CanarySection, Rules
from ml_assets.model.release.rules_in_force import as_json
from ml_assets.use.serving.answering import Limits, ServerParts
from ml_assets.use.serving.app import make_app
from ml_assets.use.serving.canary import is_of_canary
from ml_assets.use.serving.log_retention import LogBounds, LogRetention
from ml_assets.use.serving.online_lookup import OnlineLookup
from ml_assets.use.serving.openapi import example_of
from ml_assets.use.serving.request_log import RequestLog
from ml_assets.use.serving.server import started
from ml_assets.use.serving.watch import CanaryShare, Declaration, StageWatch
from ml_assets_tests.release.conftest import CATEGORY, NUMERIC, contents_of, rows, store
from ml_assets_tests.release.test_matrix import failing_above, weighted_sum
from resources.artifacts import FolderArtifacts
from resources.ledger import Ledger, LedgerBusy, LedgerUnavailable, Person, Promotion
from resources.web.last_answers import LastAnswers

__all__ = ["rows", "store"]

MODEL = "small"
SECRET = b"a secret of the servers in tests"


@dataclass
class Serving:
    """A server that looks at the ledger only when a test says so."""

    ledger: Ledger
    bundles: list[Bundle]
    """Version 1 is the first."""
    parts: ServerParts
    client: TestClient
    stop: Callable[[], object]
    """End the server: then all of its log is written."""

    def promote(self, version: int, alias: str = "production") -> Promotion:
        """Record a promotion, and let the server look at the ledger."""
        promotion = record_promotion(self.ledger, self.bundles[version - 1], version, alias)
        self.parts.watch.refresh()
        return promotion

    def accept(self, canary: CanaryShare | None) -> None:
        """Let somebody accept other rules of the canary."""
        by = Person.unchecked("lead")
        self.ledger.models.accept_rules(MODEL, rules_with(canary), by, reason="for the test", allow=lambda: 0)

    def of_canary(self, version: int) -> str:
        """Return an entity that the canary of this version answers, of half of all."""
        names = (f"N{number}" for number in range(1_000))
        return next(one for one in names if self.is_of_canary(f'["{one}"]', version))

    def is_of_canary(self, entity: str, version: int) -> bool:
        """Return True if the canary of this version answers an entity, of half of all."""
        canary = self.ledger.models.in_production(MODEL, "canary")
        assert canary is not None
        digest = self.bundles[version - 1].digest
        assert canary.bundle_digest == digest
        return is_of_canary(
            entity, secret=SECRET, model=MODEL, bundle_digest=digest, begun=canary.at, share=0.5
        )

    def row(self, **changes: Any) -> dict[str, Any]:
        """Return the example of the version in production with other values."""
        served = self.parts.watch.served(MODEL)
        assert served is not None
        assert served.production is not None
        return {**example_of(served.production), **changes}

    def predict(self, rows: Any, **headers: str) -> httpx.Response:
        """Send a row or a list of rows."""
        return self.client.post(f"/models/{MODEL}/predict", json=rows, headers=headers)

    def metric(self, name: str, **labels: str) -> float:
        """Return the value of a metric; 0 if nobody counted it."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        for line in self.client.get("/metrics").text.splitlines():
            if line.split("{")[0].split(" ")[0] == f"ml_assets_serving_{name}" and all(
                one in line for one in wanted
            ):
                return float(line.rsplit(" ", 1)[1])
        return 0.0


Serve = Callable[..., Serving]


def rules_with(canary: CanaryShare | None) -> str:
    """Return rules for the ledger, with this share and a time for a canary."""
    section = None if canary is None else CanarySection(share=canary.share, by=canary.by)
    return as_json(Rules(canary=section or CanarySection(bake_hours=1)))


def record_promotion(ledger: Ledger, bundle: Bundle, version: int, alias: str = "production") -> Promotion:
    """Record a promotion as `ml-assets promote` does, without the evaluation before it."""
    return ledger.models.promote(
        MODEL,
        str(version),
        alias,
        by=Person.unchecked("ada"),
        reason="for the test",
        bundle_digest=bundle.digest,
        evaluation_digest="e" * 64,
    )


def summing(
    rows: pl.DataFrame, store: BundleStore, numeric: list[str], fingerprint: str, model: str = MODEL
) -> Bundle:
    """Build a bundle that adds up its columns. It needs no export from torch, which takes seconds."""
    return _built(rows, store, numeric, fingerprint, model, weighted_sum(len(numeric) + len(CATEGORY)))


def _built(
    rows: pl.DataFrame,
    store: BundleStore,
    numeric: list[str],
    fingerprint: str,
    model: str,
    graph: onnx.ModelProto,
) -> Bundle:
    contents = contents_of(rows, numeric, CATEGORY, "regression", fingerprint=fingerprint * 64, model=model)
    return build_bundle(replace(contents, module=MatrixGraph(graph.SerializeToString())), store)


@pytest.fixture(scope="session")
def versions(rows: pl.DataFrame, store: BundleStore) -> list[Bundle]:
    """Three bundles with the same weights, one that reads a column more, one that onnxruntime cannot run for an hour
    far beyond those of the golden rows."""
    wider = rows.with_columns(extra=1.0 * pl.int_range(pl.len()))
    same = [summing(rows, store, NUMERIC, fingerprint) for fingerprint in "123"]
    fragile = _built(rows, store, NUMERIC, "5", MODEL, failing_above(len(NUMERIC) + len(CATEGORY), 1000.0))
    return [*same, summing(wider, store, [*NUMERIC, "extra"], "4"), fragile]


@pytest.fixture
def log_artifacts(tmp_path: Path) -> FolderArtifacts:
    """Artifacts of the log of requests."""
    return FolderArtifacts(tmp_path / "log")


@pytest.fixture
def serve(
    tmp_path: Path, versions: list[Bundle], store: BundleStore, log_artifacts: FolderArtifacts
) -> Generator[Serve]:
    """`(production version or None, **changes) -> Serving`; all servers end with the test."""
    with ExitStack() as stack:

        def make(
            version: int | None = 1,
            *,
            store: BundleStore = store,
            limits: Limits = Limits(canary_seconds=200),  # noqa: B008
            ledger: Ledger | None = None,
            canary: CanaryShare | None = None,
            bounds: LogBounds = LogBounds(),  # noqa: B008
            online: OnlineLookup | None = None,
            **declared: Any,
        ) -> Serving:
            ledger = ledger or Ledger(f"sqlite:///{tmp_path}/ledger.db")
            if canary is not None:
                ledger.models.record_first_rules(MODEL, rules_with(canary), Person.unchecked("lead"))
            if version is not None:
                record_promotion(ledger, versions[version - 1], version)
            declaration = Declaration(model=MODEL, **declared)
            away = (LedgerUnavailable, LedgerBusy)
            reader = StageReader(
                ledger, LastAnswers(tmp_path / "last-answers", "the ledger", away, patience_seconds=0)
            )
            watch = StageWatch(
                reader, store, [declaration], seconds=86_400, secret=lambda: SECRET, retry_seconds=0
            )
            retention = LogRetention(log_artifacts, watch, bounds, seconds=86_400)
            log, of_model = RequestLog(log_artifacts), {} if online is None else {MODEL: online}
            parts = stack.enter_context(started(watch, log, retention, limits, of_model))
            client = stack.enter_context(TestClient(make_app(parts), raise_server_exceptions=False))
            return Serving(ledger, versions, parts, client, stack.close)

        yield make
