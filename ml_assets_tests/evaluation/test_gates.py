"""Gate decisions that follow from measurements, and the text of their reasons."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ml_assets.model.evaluation.comparison.gates import Cell, Champion, decide
from ml_assets.model.evaluation.comparison.holdout_rows import SliceKey
from ml_assets.model.evaluation.evaluation_document import GateDecision
from ml_assets.model.evaluation.metrics.bootstrap import Estimate
from ml_assets.model.evaluation.spec import EvaluationSpec, Gate

CHAMPION = Champion("version 7")
NOISE = np.random.default_rng(0).normal(size=1000)
BLOCKS = 61


def cell(
    better_by: float,
    half: float,
    *,
    where: SliceKey | None = None,
    rows: int = 5000,
    blocks: int = BLOCKS,
    champion: bool = True,
    noise: Any = NOISE,
) -> Cell:
    """AUC 0.70 of champion and baseline; the challenger's is better by `better_by` ± `half` (at 95 %)."""
    reference = Estimate(0.70, np.full(len(noise), 0.70), blocks)
    better = Estimate(0.70 + better_by, 0.70 + better_by + noise * half / 2.02, blocks)
    estimates = {("challenger", "auc"): better, ("baseline", "auc"): reference}
    return Cell(where, rows, blocks, estimates | ({("champion", "auc"): reference} if champion else {}))  # pyright: ignore


def decision(*gates: dict[str, Any], cells: list[Cell], champion: Champion | None = CHAMPION) -> GateDecision:
    named = [{"name": f"rule {index}", "metric": "auc"} | gate for index, gate in enumerate(gates, start=1)]
    spec = EvaluationSpec.model_validate({"objective": "binary", "slices": ["carrier"], "gates": named})
    return decide(spec, cells, champion, guess="last known label of shop")


@pytest.mark.parametrize(
    ("gate", "better_by", "half", "status"),
    [
        # Value thresholds: the measured value decides.
        ({"at_least": 0.71}, 0.02, 0.05, "blessed"),
        ({"at_least": 0.72}, 0.02, 0.05, "blessed"),
        ({"at_least": 0.73}, 0.02, 0.05, "rejected"),
        ({"at_most": 0.71}, 0.02, 0.05, "rejected"),
        ({"at_most": 0.73}, 0.02, 0.05, "blessed"),
        # Change thresholds: the interval decides.
        ({"better_than": "champion"}, 0.02, 0.01, "blessed"),
        ({"better_than": "champion"}, 0.02, 0.03, "undecided"),
        ({"better_than": "champion"}, -0.02, 0.01, "rejected"),
        ({"better_than": "champion", "margin": 0.015}, 0.02, 0.01, "undecided"),
        ({"better_than": "champion", "margin": 0.04}, 0.02, 0.01, "rejected"),
        ({"better_than": "champion", "margin": -0.03}, -0.01, 0.01, "blessed"),
        ({"better_than": "champion", "margin": -0.03}, -0.05, 0.01, "rejected"),
        ({"better_than": "baseline"}, 0.02, 0.01, "blessed"),
        # As a share of the champion's 0.70: better by 2.86 % ± 1.43 %.
        ({"better_than": "champion", "margin": "1%"}, 0.02, 0.01, "blessed"),
        ({"better_than": "champion", "margin": "2%"}, 0.02, 0.01, "undecided"),
        ({"better_than": "champion", "margin": "5%"}, 0.02, 0.01, "rejected"),
        # A guard rail fails only where harm is shown.
        ({"better_than": "champion", "on_undecided": "pass"}, -0.01, 0.03, "blessed"),
        ({"better_than": "champion", "on_undecided": "pass"}, -0.02, 0.01, "rejected"),
        # The same model again is not better.
        ({"better_than": "champion"}, 0.0, 0.0, "undecided"),
        ({"better_than": "champion", "margin": -0.001}, 0.0, 0.0, "blessed"),
    ],
)
def test_one_rule(gate: dict[str, Any], better_by: float, half: float, status: str) -> None:
    assert decision(gate, cells=[cell(better_by, half)]).status == status


@pytest.mark.parametrize(
    ("better_by", "at_least", "said"),
    [
        (
            0.30,
            0.9,
            "Blessed: 1 rule passed. No error on the holdout, as with a leak: ml-assets leaktest TABLE.",
        ),
        (
            0.29996,
            0.9,
            "Blessed: 1 rule passed. No error on the holdout, as with a leak: ml-assets leaktest TABLE.",
        ),
        (0.2999, 0.9, "Blessed: 1 rule passed."),
        (0.29, 0.9, "Blessed: 1 rule passed."),
    ],
)
def test_a_model_without_an_error_is_blessed_with_a_warning(
    better_by: float, at_least: float, said: str
) -> None:
    """A score that a report prints as 1.0000."""
    found = decision({"at_least": at_least}, cells=[cell(better_by, 0.0)])
    assert (found.status, found.summary) == ("blessed", said)
    assert found.no_error == ("No error" in said)


@pytest.mark.parametrize("better_by", [0.30, 0.29])
def test_a_decision_of_before_is_read_by_its_summary(better_by: float) -> None:
    """Stored reports had no field that says so, and nobody who rewords a summary should change their meaning."""
    found = decision({"at_least": 0.9}, cells=[cell(better_by, 0.0)])
    assert GateDecision.model_validate_json(found.model_dump_json(exclude={"no_error"})) == found
    reworded = found.model_copy(update={"summary": "Blessed."})
    assert GateDecision.model_validate_json(reworded.model_dump_json()).no_error == found.no_error


def test_a_holdout_of_one_label_is_no_sign_of_a_leak() -> None:
    of_one_label = replace(cell(0.30, 0.0), has_one_label=True)
    assert "leak" not in decision({"at_least": 0.9}, cells=[of_one_label]).summary


def test_asking_for_more_confidence_can_undecide() -> None:
    gate = {"better_than": "champion"}
    assert decision(gate, cells=[cell(0.02, 0.017)]).status == "blessed"
    assert decision(gate | {"confidence": 0.99}, cells=[cell(0.02, 0.017)]).status == "undecided"


@pytest.mark.parametrize(
    ("gates", "status"),
    [
        ([{"at_least": 0.7}, {"better_than": "baseline"}], "blessed"),
        ([{"at_least": 0.7}, {"better_than": "baseline", "margin": 0.015}], "undecided"),
        ([{"at_least": 0.9}, {"better_than": "baseline", "margin": 0.015}], "rejected"),
    ],
)
def test_worst_rule_decides(gates: list[dict[str, Any]], status: str) -> None:
    assert decision(*gates, cells=[cell(0.02, 0.01)]).status == status


def test_loss_is_better_where_it_is_lower() -> None:
    spec = EvaluationSpec.model_validate(
        {"objective": "binary", "gates": [{"name": "g", "metric": "logloss", "better_than": "baseline"}]}
    )
    low, high = Estimate(0.50, 0.50 + NOISE / 1000, BLOCKS), Estimate(0.55, 0.55 + NOISE / 1000, BLOCKS)
    for challenger, baseline, status in ((low, high, "blessed"), (high, low, "rejected")):
        estimates = {("challenger", "logloss"): challenger, ("baseline", "logloss"): baseline}
        assert decide(spec, [Cell(None, 100, BLOCKS, estimates)], None).status == status  # pyright: ignore


def test_first_model_is_decided_by_the_baseline_it_names() -> None:
    gates = [{"better_than": "champion"}, {"better_than": "baseline"}]
    found = decision(*gates, cells=[cell(0.02, 0.01, champion=False)], champion=None)
    assert found.status == "blessed"
    assert [rule.status for rule in found.rules] == ["not_applicable", "passed"]
    assert "first model" in found.rules[0].explanation


def test_a_gate_says_what_the_naive_baseline_predicts() -> None:
    gates = [{"better_than": "baseline"}, {"better_than": "champion"}]
    against_naive, against_champion = decision(*gates, cells=[cell(0.02, 0.01)]).rules
    assert "over the naive baseline (last known label of shop) is" in against_naive.explanation
    assert "shop" not in against_champion.explanation


@pytest.mark.parametrize(
    ("better_by", "status"), [(0.02, "blessed"), (-0.02, "rejected"), (0.0, "undecided")]
)
def test_first_model_is_decided_by_the_baseline_unasked(better_by: float, status: str) -> None:
    found = decision(
        {"better_than": "champion"}, cells=[cell(better_by, 0.01, champion=False)], champion=None
    )
    assert found.status == status
    assert found.rules[1].compared_with == "baseline"
    assert found.rules[1].rule.startswith("first model:")


def test_nothing_is_blessed_by_rules_that_do_not_apply() -> None:
    small = [cell(0.0, 0.0), cell(0.1, 0.01, where=SliceKey("carrier", "HA"), rows=40)]
    found = decision({"better_than": "baseline", "slice": {"carrier": "HA"}}, cells=small)
    assert found.status == "undecided"
    assert found.summary == "Undecided: no rule applied."


class TestChampionThatHasSeenTheHoldout:
    SEEN = Champion.compare(
        "version 7",
        trained_on=["2013-10-31", "2013-11-01", "2013-11-02"],
        holdout=["2013-11-02", "2013-11-01"],
    )

    def test_undecides_the_rules_about_it(self) -> None:
        found = decision({"better_than": "champion"}, cells=[cell(0.02, 0.01)], champion=self.SEEN)
        assert found.status == "undecided"
        assert "(version 7)" in found.reasons[0]
        assert "on 2 of this" in found.reasons[0]
        assert "(2013-11-01 … 2013-11-02)" in found.reasons[0]

    def test_undecides_even_where_no_rule_asks_about_it(self) -> None:
        found = decision({"at_least": 0.5}, cells=[cell(0.02, 0.01)], champion=self.SEEN)
        assert found.status == "undecided"
        assert [rule.status for rule in found.rules] == ["passed"]

    def test_does_not_save_a_model_that_fails_on_its_own(self) -> None:
        gates = [{"better_than": "champion"}, {"at_least": 0.9}]
        assert decision(*gates, cells=[cell(0.02, 0.01)], champion=self.SEEN).status == "rejected"


class TestChampionThatCannotScore:
    GONE = Champion("version 7", cannot_score="columns ['gate'] are missing")

    @staticmethod
    def decision(on_incomparable: str, *gates: dict[str, Any], better_by: float = 0.02) -> GateDecision:
        named = [
            {"name": f"rule {index}", "metric": "auc"} | gate for index, gate in enumerate(gates, start=1)
        ]
        spec = EvaluationSpec.model_validate(
            {"objective": "binary", "gates": named, "on_incomparable": on_incomparable}
        )
        cells = [cell(better_by, 0.01, champion=False)]
        return decide(spec, cells, TestChampionThatCannotScore.GONE)

    @pytest.mark.parametrize("gate", [{"better_than": "champion"}, {"at_least": 0.5}])
    @pytest.mark.parametrize(("setting", "status"), [("undecided", "undecided"), ("reject", "rejected")])
    def test_decides_as_the_pipeline_says(self, setting: str, status: str, gate: dict[str, Any]) -> None:
        found = self.decision(setting, gate)
        assert found.status == status
        assert found.summary.startswith(f"{status.capitalize()}: the champion")
        (reason,) = found.reasons
        assert "(version 7)" in reason
        assert reason.endswith(self.GONE.cannot_score)

    @pytest.mark.parametrize(("better_by", "status"), [(0.02, "blessed"), (-0.02, "rejected")])
    def test_ignored_leaves_the_decision_to_the_baseline(self, better_by: float, status: str) -> None:
        found = self.decision("ignore", {"better_than": "champion"}, better_by=better_by)
        assert found.status == status
        assert [rule.status for rule in found.rules][:1] == ["not_applicable"]
        assert "`on_incomparable: ignore`" in found.rules[0].explanation
        assert found.rules[1].compared_with == "baseline"
        assert "champion cannot score" in found.rules[1].rule

    def test_does_not_save_a_model_that_fails_on_its_own(self) -> None:
        found = self.decision("undecided", {"better_than": "champion"}, {"at_least": 0.9})
        assert found.status == "rejected"
        assert found.summary.startswith("Rejected: 1 of 2")


class TestSlices:
    @staticmethod
    def cells(**better: tuple[float, float, int]) -> list[Cell]:
        parts = [
            cell(by, half, where=SliceKey("carrier", name), rows=rows)
            for name, (by, half, rows) in better.items()
        ]
        return [cell(0.02, 0.001), *parts]

    def test_one_slice_can_reject_by_name(self) -> None:
        found = decision(
            {"better_than": "champion", "slice": {"carrier": "*"}},
            cells=self.cells(AA=(0.02, 0.01, 900), UA=(-0.03, 0.01, 900)),
        )
        assert found.status == "rejected"
        [failed] = [rule for rule in found.rules if rule.status == "failed"]
        assert failed.slice == "carrier=UA"
        assert failed.would_pass is not None

    def test_only_the_slice_that_was_named_is_measured(self) -> None:
        found = decision(
            {"better_than": "champion", "slice": {"carrier": "AA"}},
            cells=self.cells(AA=(0.02, 0.01, 900), UA=(-0.03, 0.01, 900)),
        )
        assert found.status == "blessed"
        assert [rule.slice for rule in found.rules] == ["carrier=AA"]

    def test_small_slices_are_left_out_and_say_so(self) -> None:
        gate = {"better_than": "champion", "slice": {"carrier": "*"}}
        cells = self.cells(AA=(0.02, 0.01, 900), HA=(-0.3, 0.01, 60))
        found = decision(gate, cells=cells)
        assert found.status == "blessed"
        assert (found.rules[1].status, found.rules[1].rows) == ("not_applicable", 60)
        assert "60 rows" in found.rules[1].explanation
        assert "the 500 that" in found.rules[1].explanation
        assert decision(gate | {"min_rows": 50}, cells=cells).status == "rejected"

    def test_slice_that_does_not_exist_is_not_passed_over(self) -> None:
        found = decision(
            {"at_least": 0.5, "slice": {"carrier": "XX"}}, cells=self.cells(AA=(0.02, 0.01, 900))
        )
        assert found.status == "undecided"
        assert "no row with carrier=XX" in found.reasons[0]

    def test_looking_at_many_slices_does_not_reject_by_luck(self) -> None:
        random = np.random.default_rng(7)
        gate = {"better_than": "champion", "slice": {"carrier": "*"}, "on_undecided": "pass"}
        rejected = 0
        for _ in range(100):
            # Fourteen slices of a challenger that is neither better nor worse: what is measured is noise.
            cells = [
                cell(
                    float(random.normal()) * 0.01,
                    0.0202,
                    where=SliceKey("carrier", f"C{index}"),
                    noise=random.normal(size=400),
                )
                for index in range(14)
            ]
            rejected += decision(gate, cells=cells).status == "rejected"
        # One interval at a time would reject about 30 of 100; a lower end by luck happens to 2.5 %.
        assert rejected <= 8


class TestRowsThatCannotTell:
    """Few blocks, one label, a reference of 0: nothing passes on them unless the rule says so for that case."""

    @staticmethod
    def cells(case: str) -> list[Cell]:
        if case == "few blocks":
            return [cell(0.02, 0.01, blocks=4)]
        found = cell(0.02, 0.01)
        if case == "one label":
            return [replace(found, has_one_label=True)]
        nothing = Estimate(0.0, np.zeros(len(NOISE)), BLOCKS)
        return [replace(found, estimates=found.estimates | {("champion", "auc"): nothing})]

    @pytest.mark.parametrize(
        ("case", "gate", "why"),
        [
            ("few blocks", {"better_than": "champion"}, "4 blocks, and at least 5"),
            ("few blocks", {"better_than": "champion", "on_undecided": "pass"}, "4 blocks, and at least 5"),
            ("few blocks", {"at_least": 0.6}, "4 blocks, and at least 5"),
            ("one label", {"better_than": "champion"}, "all rows have the same label"),
            (
                "one label",
                {"better_than": "champion", "margin": 0.015, "on_undecided": "pass"},
                "the same label",
            ),
            ("one label", {"at_most": 0.8}, "all rows have the same label"),
            (
                "reference of 0",
                {"better_than": "champion", "margin": "1%", "on_undecided": "pass"},
                "not defined on these",
            ),
        ],
    )
    def test_nothing_passes_unless_the_rule_says_so(self, case: str, gate: dict[str, Any], why: str) -> None:
        found = decision(gate, cells=self.cells(case))
        assert found.status == "undecided"
        assert why in found.reasons[0]
        allowed = decision(gate | {"on_undefined": "pass"}, cells=self.cells(case))
        assert allowed.status == "blessed"
        assert why in allowed.reasons[0]
        assert "`on_undefined: pass`" in allowed.reasons[0]

    @pytest.mark.parametrize("case", ["few blocks", "one label"])
    def test_what_fails_still_fails(self, case: str) -> None:
        assert (
            decision({"at_least": 0.9, "on_undefined": "pass"}, cells=self.cells(case)).status == "rejected"
        )


class TestExplanations:
    def test_undecided_says_how_much_longer_a_holdout_would_do(self) -> None:
        [rule] = decision({"better_than": "champion"}, cells=[cell(0.01, 0.02)]).rules
        assert (rule.status, rule.compared_with) == ("undecided", "champion")
        assert "AUC" in rule.explanation
        assert "+0.0100 [−0.0" in rule.explanation
        assert "these 61 blocks" in rule.explanation
        assert rule.would_pass is not None
        assert "3.7 times as long" in rule.would_pass

    def test_failed_value_says_by_how_much(self) -> None:
        [rule] = decision({"at_least": 0.75}, cells=[cell(0.02, 0.01)]).rules
        assert "0.7500, missed by 0.0300" in rule.explanation
        assert rule.would_pass is not None
        assert rule.would_pass.startswith("AUC of at least 0.7500,")
        assert "0.0300 more" in rule.would_pass

    @pytest.mark.parametrize(
        ("better_by", "margin", "words"),
        [(-0.02, 0.0, "it is worse"), (0.02, 0.05, "it is better, but not enough")],
    )
    def test_failed_change_tells_worse_from_not_enough(
        self, better_by: float, margin: float, words: str
    ) -> None:
        [rule] = decision({"better_than": "champion", "margin": margin}, cells=[cell(better_by, 0.01)]).rules
        assert rule.explanation.endswith(words)

    def test_passed_rule_needs_nothing(self) -> None:
        [rule] = decision({"better_than": "champion"}, cells=[cell(0.02, 0.01)]).rules
        assert rule.would_pass is None

    def test_too_few_blocks_are_said(self) -> None:
        found = decision({"better_than": "champion"}, cells=[cell(0.2, 0.001, blocks=4)])
        assert found.status == "undecided"
        assert "there are 4 blocks" in found.reasons[0]


@pytest.mark.parametrize(("limit", "status"), [(5.0, "passed"), (1.0, "failed")])
def test_latency_is_limited_beside_the_metrics(limit: float, status: str) -> None:
    """It has no rows, so too few blocks do not matter."""
    fast = Gate.model_validate({"name": "fast", "metric": "row_p99_ms", "at_most": limit})
    ranks = {"name": "ranks", "metric": "auc", "at_least": 0.5}
    spec = EvaluationSpec.model_validate({"objective": "binary", "gates": [ranks]})
    spec = spec.model_copy(update={"gates": (fast,)})
    found = decide(spec, [Cell(None, 1, 1, {})], None, {"row_p99_ms": 1.25})
    (rule,) = found.rules
    assert rule.status == status
    assert found.status == ("blessed" if status == "passed" else "rejected")
    assert (rule.metric, rule.limit) == ("row_p99_ms", limit)
    assert rule.measured is not None
    assert rule.measured.value == 1.25
    assert "1.2500" in rule.explanation
    assert f"at most {limit:.4f}" in rule.explanation
