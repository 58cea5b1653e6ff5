"""The pipeline tiny_text: its source is the installed package, no byte of a text is lost, and its length is one."""

from datetime import UTC, date, datetime

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_assets.defs.tiny_text import features, model, source


@given(text=st.binary(min_size=2, max_size=3 * features.WINDOW + 2))
def test_a_text_is_divided_without_loss(text: bytes) -> None:
    windows = features.divided(text)
    assert b"".join(windows) == text
    assert all(2 <= len(window) <= features.WINDOW for window in windows)
    read = np.stack([model.decode(window) for window in windows])
    assert bytes(read[read >= 0].tolist()) == text
    assert ((read >= 0).sum(axis=1) == [len(window) for window in windows]).all()


def test_a_text_beyond_the_model_is_refused_not_cut_off() -> None:
    assert model.TOKENS == features.WINDOW
    with pytest.raises(ValueError, match="the text has 257 bytes, and the model reads 256: divide it"):
        model.decode(bytes(257))


def test_the_source_reads_the_services_of_a_week() -> None:
    week = source.read_documentation(date(2017, 11, 27))
    assert "guardduty" in week["service"].to_list()
    assert week["version"].is_between(date(2017, 11, 27), date(2017, 12, 3)).all()
    row = week.row(by_predicate=pl.col("service") == "guardduty", named=True)
    assert row["published_at"] == datetime(2017, 11, 29, tzinfo=UTC)
    assert row["text"].startswith("Amazon GuardDuty is a continuous security monitoring service")
    assert "<" not in row["text"].splitlines()[0]
    windows = features.windows({"datasets/documentation": week.lazy()}, date(2017, 11, 27), date(2017, 12, 3))
    assert windows["text"].bin.size().sum() == sum(len(text.encode()) for text in week["text"])
    assert source.read_documentation(date(2017, 1, 2)).schema == week.schema
