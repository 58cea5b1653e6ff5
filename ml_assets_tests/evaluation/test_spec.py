"""Settings that a pipeline may write, and answers to typos."""

from typing import Any

import pytest
from pydantic import ValidationError

from ml_assets.model.evaluation.spec import EvaluationSpec, Gate, Margin

GATE = {"name": "ranks", "metric": "auc", "at_least": 0.7}


def spec(**changes: Any) -> EvaluationSpec:
    return EvaluationSpec.model_validate({"objective": "binary", "gates": [GATE]} | changes)


def test_short_form_of_a_slice_is_its_column() -> None:
    found = spec(
        slices=["origin", {"column": "date", "by": "month"}], baseline={"groups": ["carrier", "origin"]}
    )
    assert [one.name for one in found.sliced_by] == ["origin", "month"]
    assert found.columns == ("date", "origin", "carrier")


@pytest.mark.parametrize(
    ("said", "margin"),
    [
        (0.01, Margin(0.01)),
        (-0.02, Margin(-0.02)),
        ("0.5%", Margin(0.005, relative=True)),
        ("-1 %", Margin(-0.01, relative=True)),
    ],
)
def test_margin_is_a_number_or_a_share(said: float | str, margin: Margin) -> None:
    assert Gate(name="g", metric="auc", better_than="champion", margin=said).required_margin == margin


@pytest.mark.parametrize(
    ("gate", "complaint"),
    [
        ({"name": "g", "metric": "auc"}, "give one of at_least, at_most, better_than; found none"),
        (GATE | {"at_most": 0.9}, "found at_least and at_most"),
        (GATE | {"margin": 0.1}, "margin needs better_than"),
        (GATE | {"on_undecided": "pass"}, "on_undecided needs better_than"),
        (GATE | {"slice": {"origin": "JFK", "carrier": "AA"}}, "slice is one `column: value`"),
        (GATE | {"slice": {"orign": "JFK"}}, "'orign' is not among the slices"),
        (GATE | {"metric": "ndcg"}, "use one of auc, logloss, brier, ece"),
        (
            {"name": "g", "metric": "row_p99_ms", "at_least": 5},
            "row_p99_ms takes `at_most`, and nothing about rows",
        ),
        (
            {"name": "g", "metric": "bundle_mb", "better_than": "champion"},
            "bundle_mb takes `at_most`, and nothing about rows",
        ),
        (GATE | {"at_lest": 0.7}, "unknown key 'at_lest': did you mean 'at_least'"),
        ({"name": "g", "metric": "auc", "better_than": "champion", "margin": "half"}, 'such as "0.5%"'),
        ({"name": "g", "metric": "auc", "better_than": "champion", "margin": "0.5%%"}, 'such as "0.5%"'),
        ({"name": "g", "metric": "auc", "better_than": "champoin"}, "'champion', 'baseline' or 'reference'"),
    ],
)
def test_gate_that_cannot_be_meant_is_refused(gate: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint.replace("(", r"\(")):
        spec(gates=[gate], slices=["origin"])


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"gates": []}, "at least one rule"),
        (
            {
                "gates": [
                    {"name": "fast", "metric": "row_p99_ms", "at_most": 5},
                    {"name": "small", "metric": "bundle_mb", "at_most": 5},
                ]
            },
            "gates ask only for bundle_mb, row_p99_ms, which a constant prediction can have: .* nothing of use",
        ),
        (
            {
                "bias": [{"column": "carrier", "threshold": 0.5}],
                "gates": [
                    {"name": "calibrated", "metric": "ece", "better_than": "champion"},
                    {"name": "alike", "metric": "equal_opportunity_carrier", "at_most": 0.1},
                ],
            },
            "gates ask only for ece, equal_opportunity_carrier, .* Add .* `{metric: auc, better_than: baseline}`",
        ),
        (
            {
                "objective": "quantile 0.9",
                "gates": [{"name": "covers", "metric": "coverage_error", "at_most": 0.1}],
            },
            "gates ask only for coverage_error, .* `{metric: pinball, better_than: baseline}`",
        ),
        ({"gates": [GATE, GATE]}, "gate names must be unique: ranks"),
        ({"slices": ["month", {"column": "date", "by": "month"}]}, "slice names must be unique: month"),
        ({"slice": ["origin"]}, "unknown key 'slice': did you mean 'slices'"),
        ({"min_blocks": 251}, "less than or equal to 250"),
        ({"draws": 10}, "greater than or equal to 100"),
    ],
)
def test_section_that_cannot_be_meant_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        spec(**changes)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@pytest.mark.parametrize("key", ["at_least", "at_most"])
def test_thresholds_are_finite(key: str, wrong: float) -> None:
    """Every comparison with nan is false: such a gate would pass or fail whatever was measured."""
    with pytest.raises(ValidationError, match="finite number"):
        Gate.model_validate({"name": "g", "metric": "auc", key: wrong})


@pytest.mark.parametrize("margin", [float("nan"), float("inf"), "nan%", "inf%", "-inf %"])
def test_margins_are_finite(margin: float | str) -> None:
    with pytest.raises(ValidationError, match=r"finite number|margin must be a"):
        Gate.model_validate({"name": "g", "metric": "auc", "better_than": "champion", "margin": margin})


def test_numbers_of_the_section_are_finite() -> None:
    with pytest.raises(ValidationError, match="finite number"):
        spec(baseline={"prior_rows": float("inf")})
    with pytest.raises(ValidationError):
        spec(slices=["origin"], gates=[GATE | {"slice": {"origin": float("nan")}}])
