"""The naive baseline: group means that shrink, fall back, and cannot peek."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_assets.foundation.objective_facts import ObjectiveName
from ml_assets.model.evaluation.comparison.baseline import PRIORS, GroupMeans, LabelSums, naive_baseline
from ml_assets.model.evaluation.metrics.metrics import METRICS
from ml_assets.model.evaluation.metrics.row_weights import EvaluationInputError
from ml_assets.model.evaluation.spec import BaselineSpec

TRAIN = pl.DataFrame(
    {
        "origin": ["JFK"] * 4 + ["EWR"] * 4,
        "carrier": ["AA", "AA", "UA", "UA", "AA", "AA", "AA", None],
        "label": [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0],
    }
)


def test_without_groups_everyone_gets_the_mean() -> None:
    assert GroupMeans.fit(LabelSums.of([TRAIN]), prior_rows=1).predict(TRAIN).tolist() == [0.5] * 8


def test_group_mean_is_pulled_towards_its_parent() -> None:
    fitted = GroupMeans.fit(LabelSums.of([TRAIN], groups=["origin", "carrier"]), prior_rows=2)
    jfk = (2 + 2 * 0.5) / (4 + 2)
    expected = [(2 + 2 * jfk) / (2 + 2), (0 + 2 * jfk) / (2 + 2)]
    asked = pl.DataFrame({"origin": ["JFK", "JFK"], "carrier": ["AA", "UA"]})
    assert fitted.predict(asked) == pytest.approx(expected)


def test_unseen_groups_fall_back_level_by_level() -> None:
    fitted = GroupMeans.fit(LabelSums.of([TRAIN], groups=["origin", "carrier"]), prior_rows=2)
    asked = pl.DataFrame({"origin": ["JFK", "LGA", None, "EWR"], "carrier": ["ZZ", "AA", "AA", None]})
    jfk, ewr = (2 + 2 * 0.5) / 6, (2 + 2 * 0.5) / 6
    assert fitted.predict(asked) == pytest.approx([jfk, 0.5, 0.5, (1 + 2 * ewr) / 3])


def test_rows_without_a_label_do_not_count() -> None:
    unlabelled = pl.DataFrame({"origin": ["JFK"], "carrier": ["AA"], "label": [None]}, schema=TRAIN.schema)
    more = pl.concat([TRAIN, unlabelled])
    groups = ["origin", "carrier"]
    expected = GroupMeans.fit(LabelSums.of([TRAIN], groups=groups), prior_rows=1).predict(TRAIN)
    assert np.array_equal(
        GroupMeans.fit(LabelSums.of([more], groups=groups), prior_rows=1).predict(TRAIN), expected
    )


def test_refusals_name_what_is_missing() -> None:
    with pytest.raises(EvaluationInputError, match="lack hour"):
        LabelSums.of([TRAIN], groups=["hour"])
    with pytest.raises(EvaluationInputError, match="no training row"):
        LabelSums.of([TRAIN.clear()])


@given(
    groups=st.lists(st.sampled_from("abc"), min_size=1, max_size=40),
    labels=st.lists(st.booleans(), min_size=40, max_size=40),
    prior=st.floats(0.1, 1000),
)
def test_means_stay_within_the_labels_and_follow_the_rows(
    groups: list[str], labels: list[bool], prior: float
) -> None:
    train = pl.DataFrame({"g": groups, "label": labels[: len(groups)]})
    fitted = GroupMeans.fit(LabelSums.of([train], groups=["g"]), prior_rows=prior)
    means = fitted.predict(train)
    assert (means >= 0).all()
    assert (means <= 1).all()
    order = np.random.default_rng(0).permutation(len(groups))
    assert np.array_equal(fitted.predict(train[order.tolist()]), means[order])


def months(seed: int, spread: float, objective: ObjectiveName) -> pl.DataFrame:
    """85 rows for each of 12 months; months differ by `spread` around a level of 0.5."""
    level = 0.5 + spread * np.sin(np.arange(12))
    month = np.repeat(np.arange(12), 85)
    random = np.random.default_rng(seed)
    drawn = random.random(len(month)) < level[month]
    label = drawn if objective == "binary" else level[month] + random.normal(0, 0.1, len(month))
    return pl.DataFrame({"month": month, "label": label.astype(np.float64)})


@pytest.mark.parametrize("objective", ["binary", "regression"])
def test_months_that_differ_are_hardly_shrunk(objective: ObjectiveName) -> None:
    train, validation, holdout = (months(seed, 0.4, objective) for seed in range(3))
    found = naive_baseline([train], validation, BaselineSpec(groups=("month",)), objective)
    assert found.prior_rows <= 10
    assert "chosen on validation" in found.name
    half_global = GroupMeans.fit(LabelSums.of([train], groups=["month"]), prior_rows=100)
    y = holdout.get_column("label").to_numpy()
    loss = METRICS["logloss" if objective == "binary" else "rmse"].value
    assert loss(y, found.predict(holdout)) < 0.97 * loss(y, half_global.predict(holdout))


def test_baseline_of_a_quantile_is_the_quantile_of_the_group() -> None:
    train, validation = (months(seed, 0.4, "regression") for seed in range(2))
    found = naive_baseline([train], validation, BaselineSpec(groups=("month",)), "quantile 0.9")
    assert "(0.9 quantile by month," in found.name
    below = train["label"].to_numpy() <= found.predict(train)
    assert below.mean() == pytest.approx(0.9, abs=0.03)
    whole = naive_baseline([train], validation, BaselineSpec(), "quantile 0.9")
    assert whole.name == "naive baseline (0.9 quantile)"
    labels = train["label"].to_numpy()
    assert whole.predict(train)[0] == np.quantile(labels, 0.9, method="inverted_cdf")


def test_groups_that_do_not_differ_are_shrunk_most() -> None:
    train, validation = (months(seed, 0.0, "binary") for seed in range(2))
    found = naive_baseline([train], validation, BaselineSpec(groups=("month",)), "binary")
    assert found.prior_rows == PRIORS[-1]


def test_a_given_prior_is_taken_and_said() -> None:
    found = naive_baseline([TRAIN], TRAIN, BaselineSpec(groups=("origin",), prior_rows=100), "binary")
    assert found.prior_rows == 100
    assert "(mean by origin, prior of 100" in found.name
    one = naive_baseline([TRAIN], TRAIN, BaselineSpec(), "binary")
    assert one.name == "naive baseline (mean)"


@given(
    labels=st.lists(st.tuples(st.integers(0, 2), st.sampled_from("ab")), min_size=1, max_size=30),
    prior=st.floats(0.1, 1000),
)
def test_shares_of_classes_add_up_to_one(labels: list[tuple[int, str]], prior: float) -> None:
    """The sum is one also in a group that training has not seen. A class without rows in a group keeps some share."""
    train = pl.DataFrame(labels, schema={"label": pl.Int64, "group": pl.String}, orient="row")
    spec = BaselineSpec(groups=("group",), prior_rows=prior)
    found = naive_baseline([train], train, spec, "multiclass", label="label", classes=3)
    shares = found.predict(pl.DataFrame({"group": ["a", "b", "c"]}))
    assert shares.sum(axis=1) == pytest.approx(np.ones(3))
    seen = train["label"].unique().to_list()
    assert (shares[:, seen] > 0).all()
    assert shares[2] == pytest.approx([(train["label"] == k).mean() for k in range(3)])


def test_baseline_of_classes_chooses_its_prior_and_says_so() -> None:
    train, validation = (months(seed, 0.4, "binary") for seed in range(2))
    found = naive_baseline(
        [train], validation, BaselineSpec(groups=("month",)), "multiclass", label="label", classes=2
    )
    peer = naive_baseline([train], validation, BaselineSpec(groups=("month",)), "binary")
    assert found.predict(validation)[:, 1] == pytest.approx(peer.predict(validation))
    assert found.name == peer.name.replace("mean", "share of each class")


@st.composite
def cut_rows(draw: st.DrawFn) -> tuple[pl.DataFrame, list[pl.DataFrame]]:
    """Rows whose labels and weights are whole numbers, and the same rows in parts, some of them empty."""
    row = st.tuples(st.integers(0, 4), st.sampled_from(["a", "b", None]), st.sampled_from("xy"))
    weight = draw(st.sampled_from([1, 3, 2**40]))
    rows = draw(st.lists(row, min_size=1, max_size=40))
    frame = pl.DataFrame(rows, schema={"label": pl.Float64, "g": pl.String, "h": pl.String}, orient="row")
    frame = frame.with_columns(w=pl.int_range(1, frame.height + 1) % 3 * weight + 1)
    ends = sorted(draw(st.lists(st.integers(0, frame.height), max_size=5)))
    begins = [0, *ends]
    return frame, [frame[begin:end] for begin, end in zip(begins, [*ends, frame.height], strict=True)]


@given(
    cut=cut_rows(),
    objective=st.sampled_from(["regression", "quantile 0.7", "multiclass"]),
    weight=st.sampled_from([None, "w"]),
)
def test_parts_of_the_training_rows_give_the_bits_of_all(
    cut: tuple[pl.DataFrame, list[pl.DataFrame]], objective: ObjectiveName, weight: str | None
) -> None:
    """Sums of whole numbers are exact, so no cut of the rows changes them."""
    frame, parts = cut
    spec = BaselineSpec(groups=("g", "h"), prior_rows=3)
    classes = 5 if objective == "multiclass" else 0
    whole, streamed = (
        naive_baseline(iter(train), frame, spec, objective, weight=weight, classes=classes)
        for train in ([frame], parts)
    )
    assert np.array_equal(streamed.predict(frame), whole.predict(frame))


def test_sums_are_added_in_the_order_of_the_rows() -> None:
    """The bits depend neither on threads nor on the number of waiting parts: a fold over rows, then over parts."""
    random = np.random.default_rng(3)
    train = pl.DataFrame(
        {
            "g": random.integers(0, 7, 30_000),
            "label": random.normal(size=30_000) * 10.0 ** random.integers(-9, 9, 30_000),
        }
    )
    parts = [train[first : first + 4_000] for first in range(0, train.height, 4_000)]
    sums = LabelSums.of(parts, groups=["g"])
    expected: dict[int, float] = {}
    for part in parts:
        inside: dict[int, float] = {}
        for group, label in part.iter_rows():
            inside[group] = inside.get(group, 0.0) + label / 2
        for group, one in inside.items():
            expected[group] = expected.get(group, 0.0) + one
    assert dict(zip(sums.frame["g"], sums.frame["__sum"], strict=True)) == expected
