"""The naive baseline: group means that shrink, fall back, and cannot peek."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_assets.evaluation.baseline import GroupMeans
from ml_assets.evaluation.errors import EvaluationInputError

TRAIN = pl.DataFrame(
    {
        "origin": ["JFK"] * 4 + ["EWR"] * 4,
        "carrier": ["AA", "AA", "UA", "UA", "AA", "AA", "AA", None],
        "label": [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0],
    }
)


def test_without_groups_everyone_gets_the_mean() -> None:
    assert GroupMeans.fit(TRAIN).predict(TRAIN).tolist() == [0.5] * 8


def test_group_mean_is_pulled_towards_its_parent() -> None:
    fitted = GroupMeans.fit(TRAIN, groups=["origin", "carrier"], prior_rows=2)
    jfk = (2 + 2 * 0.5) / (4 + 2)
    expected = [(2 + 2 * jfk) / (2 + 2), (0 + 2 * jfk) / (2 + 2)]
    asked = pl.DataFrame({"origin": ["JFK", "JFK"], "carrier": ["AA", "UA"]})
    assert fitted.predict(asked) == pytest.approx(expected)


def test_unseen_groups_fall_back_level_by_level() -> None:
    fitted = GroupMeans.fit(TRAIN, groups=["origin", "carrier"], prior_rows=2)
    asked = pl.DataFrame({"origin": ["JFK", "LGA", None, "EWR"], "carrier": ["ZZ", "AA", "AA", None]})
    jfk, ewr = (2 + 2 * 0.5) / 6, (2 + 2 * 0.5) / 6
    assert fitted.predict(asked) == pytest.approx([jfk, 0.5, 0.5, (1 + 2 * ewr) / 3])


def test_rows_without_a_label_do_not_count() -> None:
    unlabelled = pl.DataFrame({"origin": ["JFK"], "carrier": ["AA"], "label": [None]}, schema=TRAIN.schema)
    more = pl.concat([TRAIN, unlabelled])
    groups = ["origin", "carrier"]
    expected = GroupMeans.fit(TRAIN, groups=groups).predict(TRAIN)
    assert np.array_equal(GroupMeans.fit(more, groups=groups).predict(TRAIN), expected)


def test_refusals_name_what_is_missing() -> None:
    with pytest.raises(EvaluationInputError, match="lack hour"):
        GroupMeans.fit(TRAIN, groups=["hour"])
    with pytest.raises(EvaluationInputError, match="no training row has a label"):
        GroupMeans.fit(TRAIN.clear())


@given(
    groups=st.lists(st.sampled_from("abc"), min_size=1, max_size=40),
    labels=st.lists(st.booleans(), min_size=40, max_size=40),
    prior=st.floats(0.1, 1000),
)
def test_means_stay_within_the_labels_and_follow_the_rows(
    groups: list[str], labels: list[bool], prior: float
) -> None:
    train = pl.DataFrame({"g": groups, "label": labels[: len(groups)]})
    fitted = GroupMeans.fit(train, groups=["g"], prior_rows=prior)
    means = fitted.predict(train)
    assert (means >= 0).all()
    assert (means <= 1).all()
    order = np.random.default_rng(0).permutation(len(groups))
    assert np.array_equal(fitted.predict(train[order.tolist()]), means[order])
