"""Sentences about a whole evaluation and its training, for the report, the asset page and the model card."""

from collections.abc import Sequence

from ml_assets.foundation.reports.numbers import count, number
from ml_assets.model.evaluation import sentences
from ml_assets.model.evaluation.evaluation_document import Evaluation, Report
from ml_assets.model.evaluation.gate import Comparator
from ml_assets.model.evaluation.list_metrics import ListFigures


def comparator_of(evaluation: Evaluation) -> Comparator:
    """Return the challenger's main comparator: the champion if it was measured here, otherwise the baseline."""
    return "champion" if "champion" in evaluation.overall.improvements else "baseline"


def plain_findings(evaluation: Evaluation) -> list[str]:
    """Return one sentence per comparator with the result of the comparison, for someone who reads nothing else."""
    found: list[str] = []
    if evaluation.champion_cannot_score:
        found.append(f"The challenger is not compared with the champion: {evaluation.champion_cannot_score}.")
    for comparator, improvements in evaluation.overall.improvements.items():
        if comparator == "champion" and evaluation.champion_seen:
            continue  # not a fair comparison; the decision explains why
        better: list[str] = []
        worse: list[str] = []
        level: list[str] = []
        for metric in evaluation.of_quality:
            one = improvements[metric.name]
            if one.low is None or one.high is None:
                continue
            (better if one.low > 0 else worse if one.high < 0 else level).append(metric.label)
        parts = [
            f"{how} in {_list(which)}"
            for how, which in (("better", better), ("worse", worse), ("not distinguishable", level))
            if which
        ]
        if comparator == "reference" and worse and not better:
            found.append(_reference_is_better(evaluation))
        elif parts:
            found.append(f"Against {sentences.THE[comparator]} the challenger is {'; '.join(parts)}.")
    return found


def lists_in_words(figures: ListFigures) -> str:
    """Return the number of lists, and the lists that no metric counts with the reason, as sentences."""
    reasons = {
        "a single row": figures.one_row,
        "no relevant row": figures.none_relevant,
        "rows of equal relevance": figures.equally_relevant,
    }
    unmeasured = sum(reasons.values())
    said = f"{count(figures.lists)} lists."
    if not unmeasured:
        return said
    why = ", ".join(f"{count(lists)} with {reason}" for reason, lists in reasons.items() if lists)
    return f"{said} Any order of {count(unmeasured)} of them is as good as any other, so no metric counts them: {why}."


def weighted(report: Report) -> str:
    """Return sentences about the weights of the rows, and about models trained with other weights than the challenger.

    Empty if each row counts once, here and in all trainings.
    """
    evaluation, said = report.evaluation, list[str]()
    if evaluation.weight:
        said.append(
            f"Rows are weighted by the column {evaluation.weight}, in the challenger's training as well: all metrics, "
            "means and shares use the weights, numbers of rows do not."
        )
    trained = {one.name: one.weight for one in report.compared if not one.cannot_score}
    if "champion" in evaluation.names:
        trained = {f"the {evaluation.names['champion']}": evaluation.champion_weight, **trained}
    for name, column in trained.items():
        if column != evaluation.weight:
            how = f"weighted rows by the column {column}" if column else "did not weight rows"
            said.append(f"The training of {name} {how}.")
    return " ".join(said)


def _reference_is_better(evaluation: Evaluation) -> str:
    metrics, improvements = evaluation.overall.metrics, evaluation.overall.improvements["reference"]
    by_metric = [
        f"{metric.label} {number(metrics['reference'][metric.name].value)} "
        f"against {number(metrics['challenger'][metric.name].value)}"
        for metric in evaluation.of_quality
        if (high := improvements[metric.name].high) is not None and high < 0
    ]
    return f"A {evaluation.names['reference']} is better: {', '.join(by_metric)}."


def survived(report: Report) -> str:
    """Return the total cost of the training's interruptions in one sentence; empty without interruptions."""
    told = report.recoveries
    if not told:
        return ""
    counts = [one.rows_repeated for one in told if one.rows_repeated is not None]
    twice = (
        f"{count(sum(counts))} rows trained twice"
        if len(counts) == len(told)
        else "repeated rows not counted"
    )
    left_out = "" if report.rows_lost is None else f", {count(report.rows_lost)} left out"
    return (
        f"interrupted {'once' if len(told) == 1 else f'{len(told)} times'}, "
        f"{sum(one.seconds for one in told):,.1f} s until it trained again, "
        f"{count(sum(one.steps_lost for one in told))} steps repeated, {twice}{left_out}"
    )


def left_out(report: Report) -> list[str]:
    """Return one sentence per split that left out rows, with their number and the reasons."""
    return [
        f"{count(one.lost)} of {count(one.rows + one.lost)} {one.split} rows are left out: "
        + ", ".join(f"{reason} ({count(rows)})" for reason, rows in one.left_out.items())
        + f". A label of this split counts if it was known by {one.known_by_in_words}."
        for one in report.splits
        if one.lost
    ]


def _list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
