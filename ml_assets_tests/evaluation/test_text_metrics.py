"""Metrics of texts count tokens, not rows; the models that count tokens give probabilities; pictures count each token
once."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ml_assets.foundation.objective_facts import PADDING
from ml_assets.model.evaluation.comparison.texts import NGrams, TokenSums, figures_of_rows, text_figures
from ml_assets.model.evaluation.metrics.bootstrap import block_form
from ml_assets.model.evaluation.metrics.metrics import metrics_of
from ml_assets.model.evaluation.metrics.row_weights import EvaluationInputError
from ml_assets.model.evaluation.spec import EvaluationSpec

IDS = 3


@st.composite
def texts(draw: st.DrawFn) -> Any:
    """`[N, T]` tokens, with padding behind the last one; each text has at least two tokens."""
    rows, width = draw(st.integers(1, 6)), draw(st.integers(2, 7))
    tokens = draw(arrays.arrays(np.int64, (rows, width), elements=st.integers(0, IDS - 1)))
    for row in range(rows):
        tokens[row, draw(st.integers(2, width)) :] = PADDING
    return tokens


def predicted(tokens: Any) -> Any:
    return (tokens != PADDING).sum(axis=1).astype(np.float64) - 1


@given(tokens=texts(), seed=st.integers(0, 99))
def test_perplexity_is_e_to_the_mean_loss_of_all_tokens(tokens: Any, seed: int) -> None:
    """The length of a row does not matter, nor how tokens are divided into rows and blocks, nor their order."""
    draw = np.random.default_rng(seed)
    counted = tokens[:, 1:] != PADDING
    nats = np.where(counted, draw.exponential(2.0, counted.shape), 0.0)
    hits = np.where(counted, draw.integers(0, 2, counted.shape), 0).astype(np.float64)
    y, p = predicted(tokens), figures_of_rows(nats, hits, tokens)
    mean = nats[counted].mean()
    expected = {
        "perplexity": np.exp(mean),
        "bits_per_token": mean / np.log(2),
        "token_accuracy": hits[counted].mean(),
    }
    order = draw.permutation(len(y))
    blocks = draw.integers(0, 3, len(y))
    drawn = draw.integers(0, 3, (4, 3)).astype(np.float64)
    for metric in metrics_of("next_token"):
        assert metric.value(y, p) == pytest.approx(expected[metric.name])
        assert metric.value(y[order], p[order]) == pytest.approx(expected[metric.name])
        form = block_form(metric, y, p, blocks, 3)
        for found, times in zip(form(drawn), drawn, strict=True):
            rows = np.repeat(np.arange(len(y)), times.astype(int)[blocks])
            again = metric.value(y[rows], p[rows])
            assert found == pytest.approx(again, nan_ok=True)
        renamed = np.array([2, 0, 1])[blocks]
        ones = np.ones((1, 3))
        assert block_form(metric, y, p, renamed, 3)(ones) == pytest.approx(form(ones))


@given(
    train=texts(), order=st.integers(1, 3), context=st.lists(st.integers(0, IDS - 1), min_size=1, max_size=4)
)
def test_counted_tokens_have_probabilities_that_add_up_to_one(
    train: Any, order: int, context: list[int]
) -> None:
    model = NGrams.fit([train], IDS, order)
    ends = np.array([[*context, token] for token in range(IDS)])
    chances = np.exp(-model.nats(ends)[:, -1])
    assert chances.sum() == pytest.approx(1)
    assert (chances > 0).all()


@given(train=texts(), order=st.integers(1, 3))
def test_counts_do_not_depend_on_the_parts_in_which_texts_arrive(train: Any, order: int) -> None:
    whole, parts = NGrams.fit([train], IDS, order), NGrams.fit([one[None] for one in train], IDS, order)
    np.testing.assert_array_equal(whole.nats(train), parts.nats(train))
    np.testing.assert_array_equal(whole.hits(train), parts.hits(train))
    np.testing.assert_array_equal(whole.shortened(1).nats(train), NGrams.fit([train], IDS, 1).nats(train))


def test_the_counts_are_those_of_witten_and_bell() -> None:
    train = np.array([[0, 1, 0, 1, 0, 2]])  # predicted: 1 0 1 0 2
    alone = {0: (2 + 1) / 8, 1: (2 + 1) / 8, 2: (1 + 1) / 8}
    after_0 = {1: (2 + 2 * alone[1]) / (3 + 2), 2: (1 + 2 * alone[2]) / (3 + 2)}
    after_1_0 = {1: (1 + 2 * after_0[1]) / (2 + 2), 2: (1 + 2 * after_0[2]) / (2 + 2)}
    chances = np.exp(-NGrams.fit([train], 3, 3).nats(np.array([[2, 1, 0, 1], [1, 0, 2, PADDING]])))
    assert chances[0, 2] == pytest.approx(after_1_0[1])
    assert chances[1, 1] == pytest.approx(after_1_0[2])
    assert chances[1, 2] == 1  # padding: no loss
    assert NGrams.fit([train], 3, 1).nats(np.array([[0, 2]])) == pytest.approx(-np.log(alone[2]))
    hits = NGrams.fit([train], 3, 3).hits(np.array([[0, 1, 0, 1], [0, 2, 2, PADDING]]))
    np.testing.assert_array_equal(hits, [[1, 1, 1], [0, 0, 0]])


def test_a_vocabulary_too_large_to_count_is_refused() -> None:
    with pytest.raises(EvaluationInputError, match="2,097,151 token ids"):
        NGrams.fit([np.array([[0, 1]])], 2**21, 3)
    with pytest.raises(EvaluationInputError, match="no training text"):
        NGrams.fit([np.array([[0, PADDING]])], 2, 1)


@given(tokens=texts())
def test_pictures_count_each_token_once(tokens: Any) -> None:
    model = NGrams.fit([tokens], IDS, 2)
    nats = model.nats(tokens)
    halves = [TokenSums.of(nats[rows], tokens[rows], IDS) for rows in (slice(0, 1), slice(1, None))]
    figures = text_figures({"challenger": halves[0] + halves[1]}, model.counts_of_tokens())
    total = nats.sum() / np.log(2)
    assert figures.tokens == predicted(tokens).sum()
    for bins in (figures.positions, figures.frequencies):
        assert sum(one.tokens * one.bits["challenger"] for one in bins) == pytest.approx(total, abs=1e-4)
        assert sum(one.tokens for one in bins) == figures.tokens
    assert [one.least for one in figures.positions] == [1, 2, 4][: len(figures.positions)]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"baseline": {"groups": ["day"]}}, "baseline cannot be given for objective 'next_token'"),
        ({"explanations": {}}, "explanations cannot be given for objective 'next_token': a shuffled text"),
        ({"bias": [{"column": "day", "threshold": 0.5}]}, "bias compares decisions of objective binary"),
        ({"costs": {"false_positive": 1, "false_negative": 1}}, "costs are of decisions by objective binary"),
        ({"group": "day"}, "group is for objective 'ranking'"),
        ({"gates": [{"name": "g", "metric": "auc", "at_least": 0.5}]}, "no metric 'auc' for objective 'next_token'"),
    ],
)  # fmt: skip
def test_sections_that_mean_nothing_for_texts_are_refused_by_name(changes: dict[str, Any], said: str) -> None:
    gates = [{"name": "g", "metric": "perplexity", "at_most": 20}]
    EvaluationSpec.model_validate({"objective": "next_token", "gates": gates})
    with pytest.raises(ValueError, match=said):
        EvaluationSpec.model_validate({"objective": "next_token", "gates": gates, **changes})
