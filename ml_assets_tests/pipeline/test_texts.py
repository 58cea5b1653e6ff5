"""Texts whose tokens do not fit are refused before a launch, with rows; nothing is cut off in silence."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
import yaml

from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.data.snapshots.split_reader import SnapshotError
from ml_assets.defs import tiny_text
from ml_assets.defs.tiny_text import features
from ml_assets.model.release.runtime import InputRefused
from ml_assets.model.steps.blobs import read_texts, require_tokens
from ml_assets.model.steps.snapshot import row_choice
from ml_assets_tests.snapshots.chosen_rows import chosen_rows, taken

WEEKS = [date(2018, 11, 5) + timedelta(weeks=n) for n in range(3)]


def declared(vocabulary: int = 256) -> TrainingPipelineSpec:
    *_, found = yaml.safe_load_all((Path(tiny_text.__path__[0]) / "defs.yaml").read_text())
    attributes = found["attributes"] | {"window": {"train": 1, "validation": 1, "holdout": 1}}
    attributes["features"]["blob"]["vocabulary"] = vocabulary
    return TrainingPipelineSpec.model_validate(attributes)


def windows(text: str = "Returns a list of names. ") -> pl.DataFrame:
    """Three weeks with a service each, of two windows and a short one."""
    texts = pl.DataFrame(
        {
            "week": WEEKS,
            "service": ["a", "b", "c"],
            "version": WEEKS,
            "published_at": [datetime(week.year, week.month, week.day, tzinfo=UTC) for week in WEEKS],
            "text": [text * 25] * 3,
        }
    )
    return features.windows({"datasets/documentation": texts.lazy()}, WEEKS[0], WEEKS[-1])


def check(table: pl.DataFrame, spec: TrainingPipelineSpec) -> None:
    chosen = chosen_rows(table, *row_choice(spec, [week.isoformat() for week in WEEKS]))
    require_tokens(spec.features, chosen, table.lazy())


def test_all_bytes_of_a_text_are_tokens_of_its_rows() -> None:
    table, spec = windows(), declared()
    check(table, spec)
    chosen = chosen_rows(table, *row_choice(spec, [week.isoformat() for week in WEEKS]))
    ((part, tokens),) = read_texts(spec.features, taken(chosen, "train"), table.lazy())
    assert tokens.shape == (3, 256)
    assert bytes(tokens[tokens >= 0].tolist()).decode() == "Returns a list of names. " * 25
    assert part["predicted"].to_list() == [255, 255, 112]


def test_tokens_beyond_the_vocabulary_are_refused_with_rows() -> None:
    with pytest.raises(SnapshotError, match=r"0 to 115: .*service=a"):
        check(windows(), declared(vocabulary=116))


def test_a_label_that_is_not_the_number_of_tokens_is_refused_with_rows() -> None:
    wrong = windows().with_columns(predicted=pl.col("predicted") + (pl.col("service") == "b").cast(pl.Int32))
    said = r"3 of 3 validation texts .text. have another number of tokens than its label 'predicted' says: .*service=b"
    with pytest.raises(SnapshotError, match=said):
        check(wrong, declared())


def test_an_empty_text_is_refused_with_rows() -> None:
    empty = pl.col("number") == 2
    table = windows().with_columns(
        text=pl.when(empty).then(pl.lit(b"x")).otherwise("text"),
        predicted=pl.when(empty).then(0).otherwise("predicted").cast(pl.Int32),
    )
    said = (
        r"label 'predicted' is less than 1 or not a whole number in 3 of 9 rows: .* or leave such texts out"
    )
    with pytest.raises(SnapshotError, match=said):
        check(table, declared())


def test_a_text_longer_than_the_model_reads_is_refused_with_its_row() -> None:
    long = windows().with_columns(text=pl.lit(bytes(300)))
    with pytest.raises(InputRefused, match=r"service=a, number=0 .*300 bytes, .* 256"):
        check(long, declared())
