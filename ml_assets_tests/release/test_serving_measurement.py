"""Latency and size of a bundle: measured by its own runtime, once in a run."""

from pathlib import Path

import polars as pl

from ml_assets.model.release.bundle_store import FILES, Bundle
from ml_assets.model.steps.bundling import BATCH_ROWS, serving_cost_of
from resources.artifacts import FolderArtifacts


def test_a_run_measures_a_bundle_once(bundle: Bundle, rows: pl.DataFrame, tmp_path: Path) -> None:
    artifacts = FolderArtifacts(tmp_path)
    first = serving_cost_of(bundle, rows, artifacts, "run-1")
    assert serving_cost_of(bundle, rows, artifacts, "run-1") == first
    assert serving_cost_of(bundle, rows, artifacts, "run-2").row != first.row


def test_a_row_and_a_batch_are_measured_in_ms(bundle: Bundle, rows: pl.DataFrame, tmp_path: Path) -> None:
    cost = serving_cost_of(
        bundle, rows.sample(1_500, with_replacement=True), FolderArtifacts(tmp_path), "run"
    )
    assert (cost.row.rows, cost.batch.rows) == (1, BATCH_ROWS)
    for one in (cost.row, cost.batch):
        assert 0 < one.p50_ms <= one.p99_ms
        assert 20 <= one.calls <= 1_000
    # A batch is more work than a row, and less than its rows one by one.
    assert cost.row.p50_ms < cost.batch.p50_ms < BATCH_ROWS * cost.row.p50_ms
    assert cost.bundle_bytes == sum((bundle.folder / name).stat().st_size for name in FILES)
    assert cost.values()["bundle_mb"] == cost.bundle_bytes / 1e6
