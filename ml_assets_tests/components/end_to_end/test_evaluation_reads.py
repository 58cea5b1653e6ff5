"""Columns that an evaluation reads: those that its models and its declaration name, and no others."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq  # pyright: ignore[reportMissingTypeStubs]
import pytest

from ml_assets.model.steps.evaluate import evaluate_model
from ml_assets_tests.components.installation import Installation, failure_of, readings_components
from ml_assets_tests.components.model_run import EVALUATION, train
from ml_assets_tests.components.objectives_pipeline import HERE as LABELS
from ml_assets_tests.components.objectives_pipeline import UNREAD
from ml_assets_tests.components.readings_pipeline import (
    FEATURE_TABLE,
    FEATURES,
    MODEL,
    READINGS,
    WINDOW,
    days,
)

COLUMNS = FEATURE_TABLE["contract"]["columns"]
DECLARED = readings_components(
    features={
        "function": f"{LABELS}.with_unread",
        "contract": FEATURE_TABLE["contract"]
        | {"columns": [*COLUMNS, {"names": UNREAD, "dtype": "float64"}]},
    }
)


def spoil(file: Path, columns: list[str]) -> Path:
    """Overwrite every byte of these columns in a Parquet file; return the file."""
    found = pq.read_metadata(file)  # pyright: ignore[reportUnknownMemberType]
    file.chmod(0o644)
    with file.open("r+b") as target:
        for group in range(found.num_row_groups):
            for place in range(found.num_columns):
                column = found.row_group(group).column(place)
                if column.path_in_schema in columns:
                    target.seek(column.dictionary_page_offset or column.data_page_offset)
                    target.write(b"\xff" * column.total_compressed_size)
    return file


def test_an_evaluation_decodes_no_other_column(
    installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the training, the lake hands out files in which all bytes of the other columns are overwritten. The
    evaluation is the same, and reading one such column fails. So neither their number nor their size costs memory."""
    last = days(WINDOW, start=1)[-1]
    installation = installation.declared_as(DECLARED)
    for table, first in ((READINGS, days(1)[0]), (FEATURES, days(2)[1])):
        result = installation.run(table, partition=first, last=last)
        assert result.success, failure_of(result)
    run = train(installation, last)
    spec, lake = DECLARED[-1].spec, installation.platform.lake
    copies: dict[Path, Path] = {}
    # `at` is of the primary key: it is read only to name a row in an error.
    others = [*UNREAD, "predicted_at", "label_known_at", "at"]

    def spoiled(local: Path) -> Path:
        if local not in copies:
            copies[local] = spoil(Path(shutil.copy(local, tmp_path / f"{len(copies)}.parquet")), others)
        return copies[local]

    fetch = lake.fetch

    def spoiled_files(ref: str, paths: Sequence[str]) -> dict[str, Path]:
        found = fetch(ref, paths)
        return {path: spoiled(file) if path.endswith(".parquet") else file for path, file in found.items()}

    monkeypatch.setattr(lake, "fetch", spoiled_files)
    for name in (UNREAD[7], "label_known_at"):
        with pytest.raises(pl.exceptions.PolarsError):
            installation.main.scan(FEATURES, [last]).select(name).collect()
    training_set = run.result.output_for_node(f"{MODEL}.snapshot", "snapshot")
    trained = run.result.output_for_node(f"{MODEL}.train")
    again, _ = evaluate_model(spec, installation.platform, training_set, trained, "again")
    assert len(copies) == WINDOW
    assert again.evaluation[:12] == run.facts[EVALUATION]["evaluation"]
    assert again.bundle == run.facts[EVALUATION]["bundle"]
