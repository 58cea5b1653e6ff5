"""Plots of an evaluation and of its explanations: SVG for the report, small PNG for an asset page. Computes nothing."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ml_assets.foundation.objective_facts import Picture, facts_of
from ml_assets.foundation.reports.page import INK, Axes, Draw, Form, encoded
from ml_assets.foundation.reports.text import label, number
from ml_assets.model.evaluation.evaluation_document import CalibrationBin, Evaluation, Role, TokenBin
from ml_assets.model.evaluation.metrics.bootstrap import Interval
from ml_assets.model.evaluation.report_document import Explanations, LossCurve, PartialDependence

COLOURS: dict[Role, str] = {
    "challenger": "#1d5fa6",
    "champion": "#d9822b",
    "baseline": "#8b9099",
    "reference": "#3f8f6b",
}
_LINES: dict[Role, str] = {"challenger": "-", "champion": "-.", "baseline": "-", "reference": ":"}
"""Line style of each role, so that readers do not depend on colours."""
_FIRST_DRAWN: tuple[Role, ...] = ("baseline", "reference", "champion", "challenger")
_DASHED: dict[str, Any] = {"color": INK, "linewidth": 0.8, "linestyle": (0, (4, 3))}
_POSITIVE, _NEGATIVE = "#b4483e", "#7f93a8"
_MOST_NAMED = 12
"""Classes up to which a confusion matrix has names and numbers."""


def pictures(evaluation: Evaluation, loss: LossCurve | None = None, *, form: Form = "png") -> dict[str, str]:
    """Return each picture in base64 by name: those of the objective (`ObjectiveFacts.pictures`), and `loss`.

    A PNG has 420 × 330 pixels and less than 50 kB, small enough for the metadata of an asset. The same evaluation gives
    the same bytes.
    """
    drawings = _drawings(evaluation)
    if loss is not None and (loss.training or loss.validation):
        drawings["loss"] = lambda axes: _loss(axes, loss)
    return {name: encoded(draw, form) for name, draw in drawings.items()}


def drawn_later(evaluation: Evaluation) -> dict[str, Callable[[], str]]:
    """Return the pictures of the objective as `pictures` does, as SVG, each drawn when its function is called."""
    return {name: lambda draw=draw: encoded(draw, "svg") for name, draw in _drawings(evaluation).items()}


def _drawings(evaluation: Evaluation) -> dict[str, Draw]:
    return {
        name: lambda axes, draw=_DRAWN[name]: draw(axes, evaluation)
        for name in facts_of(evaluation.objective).pictures
    }


def headline(evaluation: Evaluation) -> dict[str, str]:
    """Return one picture in base64 by name: the deciding metric of each model, with its interval.

    The metric of the first gate that compares models, or else the first one. Empty if no model has a finite value. A
    PNG has 420 × 165 pixels.
    """
    measured = {one.name: one for one in evaluation.measured}
    compared = [
        one.metric for one in evaluation.decision.rules if one.compared_with and one.metric in measured
    ]
    metric = measured[compared[0]] if compared else evaluation.measured[0]
    found: dict[Role, Interval] = {
        role: one
        for role in reversed(_FIRST_DRAWN)
        if (one := evaluation.overall.metrics.get(role, {}).get(metric.name)) and one.value is not None
    }
    if not found:
        return {}

    def draw(axes: Axes) -> None:
        for at, (role, one) in enumerate(found.items()):
            if one.low is not None and one.high is not None:
                axes.hlines(-at, one.low, one.high, color=COLOURS[role], linewidth=2.4, alpha=0.55)
            axes.plot([one.value], [-at], "o", color=COLOURS[role], markersize=6)
            axes.annotate(
                number(one.value), (one.value, -at), (0, 6), textcoords="offset points", ha="center"
            )
        axes.set_yticks(
            [-at for at in range(len(found))], [label(evaluation.names.get(role, role)) for role in found]
        )
        axes.set_ylim(0.6 - len(found), 0.6)
        axes.set_title(f"{label(metric.label)}, {'more' if metric.higher_is_better else 'less'} is better")

    return {metric.label: encoded(draw, "png", _WIDE)}


_WIDE = (4.2, 1.65)


def _name(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def _line(axes: Axes, role: Role, x: Sequence[float], y: Sequence[float], **looks: Any) -> None:
    width = 1.8 if role == "challenger" else 1.2
    axes.plot(x, y, color=COLOURS[role], linestyle=_LINES[role], linewidth=width, **{"label": role, **looks})


def _legend_from_the_top(axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="lower right")


def _calibration(axes: Axes, evaluation: Evaluation) -> None:
    curves = evaluation.curves.calibration
    ends = [
        end
        for bins in curves.values()
        for one in bins
        for end in (one.predicted, one.observed.value, one.observed.low, one.observed.high)
        if end is not None
    ]
    low, high = min(ends), max(ends)
    facts = facts_of(evaluation.objective)
    if facts.is_zero_or_one or facts.has_classes:
        low = 0.0
    axes.plot([low, high], [low, high], **_DASHED, zorder=1)
    _bins(axes, curves)
    of = " (most likely class)" if facts.has_classes else ""
    _name(axes, "Calibration", f"mean prediction of the bin{of}", facts.observed)
    axes.legend(loc="best")


def _coverage(axes: Axes, evaluation: Evaluation) -> None:
    facts = facts_of(evaluation.objective)
    axes.axhline(facts.quantile, **_DASHED, zorder=1)
    _bins(axes, evaluation.curves.calibration)
    bins = evaluation.curves.calibration["challenger"]
    covered = sum(one.share * (one.observed.value or 0.0) for one in bins)
    _name(
        axes,
        f"Challenger's coverage: {covered:.1%} of the labels",
        "mean prediction of the bin",
        "share of labels at or below the prediction",
    )
    axes.legend(loc="lower right")


def _bins(axes: Axes, curves: Mapping[Role, Sequence[CalibrationBin]]) -> None:
    # Draw the challenger last, on top.
    for role in sorted(curves, key=_FIRST_DRAWN.index):
        bins = curves[role]
        x, y = [one.predicted for one in bins], [one.observed.value or 0.0 for one in bins]
        if role == "challenger":
            spans = [
                (one.predicted, one.observed.low, one.observed.high)
                for one in bins
                if one.observed.low is not None
            ]
            at, bottom, top = zip(*spans, strict=True) if spans else ((), (), ())
            axes.vlines(at, bottom, top, color=COLOURS[role], linewidth=1.1, alpha=0.55)
        marker = "o" if role == "challenger" else "s" if role == "baseline" else "."
        line = "none" if role == "baseline" else _LINES[role]
        axes.plot(
            x, y, color=COLOURS[role], marker=marker, markersize=4, linestyle=line, linewidth=1.3, label=role
        )


def _ranking(axes: Axes, evaluation: Evaluation) -> None:
    axes.plot([0, 1], [0, 1], **_DASHED)
    roc: Mapping[Role, Sequence[tuple[float, float]]] = evaluation.curves.roc
    for role in sorted(roc, key=_FIRST_DRAWN.index):
        area = evaluation.overall.metrics[role]["auc"].value
        x, y = zip(*roc[role], strict=True) if roc[role] else ((), ())
        _line(axes, role, x, y, label=f"{role}  AUC {number(area)}")
    _name(axes, "Ranking (ROC)", "false positive rate", "true positive rate")
    axes.set_aspect("equal")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    _legend_from_the_top(axes)


def _scores(axes: Axes, evaluation: Evaluation) -> None:
    histogram = evaluation.curves.scores
    if histogram is None:
        return
    edges = np.asarray(histogram.edges)
    looks = ((_NEGATIVE, "--"), (_POSITIVE, "-"))
    for group, (colour, line) in zip(histogram.shares, looks, strict=True):
        density, rows = np.asarray(histogram.shares[group]), histogram.rows[group]
        axes.stairs(density, edges, fill=True, color=colour, alpha=0.35)
        named = f"{label(group)} ({rows:,} rows)"
        axes.stairs(density, edges, color=colour, linewidth=1.2, linestyle=line, label=named)
    facts = facts_of(evaluation.objective)
    of_classes = "probability of the most likely class" if facts.has_classes else "predicted probability"
    _name(
        axes, "Challenger's scores", "score" if facts.has_lists else of_classes, "share of the group's rows"
    )
    used = np.flatnonzero(sum(np.asarray(shares) for shares in histogram.shares.values()))
    axes.set_xlim(edges[used[0]], edges[used[-1] + 1])
    axes.legend(loc="upper right")


def _depth(axes: Axes, evaluation: Evaluation) -> None:
    depth: Mapping[Role, Sequence[float]] = evaluation.curves.depth
    for role in sorted(depth, key=_FIRST_DRAWN.index):
        _line(axes, role, range(1, len(depth[role]) + 1), depth[role])
    places = facts_of(evaluation.objective).places
    axes.axvline(places, **_DASHED)
    axes.xaxis.get_major_locator().set_params(integer=True)
    _name(axes, "NDCG by places looked at", "first places of a list", "NDCG, mean of the lists")
    _legend_from_the_top(axes)


def _confusion(axes: Axes, evaluation: Evaluation) -> None:
    shares = np.asarray(evaluation.curves.confusion)
    names = [label(one.name) for one in evaluation.classes]
    axes.grid(visible=False)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    if len(names) <= _MOST_NAMED:
        axes.set_xticks(range(len(names)), names, rotation=0 if len(names) < 6 else 45)
        axes.set_yticks(range(len(names)), names)
        for (i, j), value in np.ndenumerate(shares):
            ink = "white" if value > 0.5 else INK
            axes.text(j, i, f"{value:.0%}", ha="center", va="center", color=ink, fontsize=7)
    _name(axes, "Challenger's most likely class", "predicted class", "label")


def _fit(axes: Axes, evaluation: Evaluation) -> None:
    density = evaluation.curves.density
    if density is None:
        return
    shares = np.asarray(density.shares).T
    # Empty cells stay white.
    darkness = np.log10(np.where(shares > 0, shares, np.nan))
    axes.grid(visible=False)
    axes.pcolormesh(density.prediction_edges, density.label_edges, darkness, cmap="Blues", rasterized=True)
    low = max(density.prediction_edges[0], density.label_edges[0])
    high = min(density.prediction_edges[-1], density.label_edges[-1])
    axes.plot([low, high], [low, high], **_DASHED)
    _name(axes, "Challenger's predictions (darker: more rows)", "prediction", "label")


def _residuals(axes: Axes, evaluation: Evaluation) -> None:
    histogram = evaluation.curves.scores
    if histogram is None:
        return
    share, colour = histogram.shares["residual"], COLOURS["challenger"]
    axes.stairs(share, histogram.edges, fill=True, color=colour, alpha=0.35)
    axes.stairs(share, histogram.edges, color=colour, linewidth=1.2)
    axes.axvline(0, **_DASHED)
    _name(axes, "Challenger's residuals", "label − prediction", "share of rows")


def _positions(axes: Axes, evaluation: Evaluation) -> None:
    if evaluation.texts is None:
        return
    bins = evaluation.texts.positions
    _token_bins(axes, bins, [f"{one.least:,}" for one in bins])
    _name(
        axes, "Loss by length of the context", "tokens before the predicted one, from … on", "bits per token"
    )


def _frequencies(axes: Axes, evaluation: Evaluation) -> None:
    if evaluation.texts is None:
        return
    bins, total = evaluation.texts.frequencies, evaluation.texts.tokens
    names = [f"10^{len(str(one.least)) - 1}" if one.least else "never" for one in bins]
    shares = (f"{one.tokens / total:.1%}" for one in bins)
    _token_bins(axes, bins, [f"{name}\n{share}" for name, share in zip(names, shares, strict=True)])
    at = "times in the training texts, from … on; share of the holdout"
    _name(axes, "Loss by frequency of the predicted token", at, "bits per token")


def _token_bins(axes: Axes, bins: Sequence[TokenBin], names: Sequence[str]) -> None:
    for role in sorted(bins[0].bits, key=_FIRST_DRAWN.index):
        _line(axes, role, range(len(bins)), [one.bits[role] for one in bins], marker="o", markersize=4)
    axes.set_xticks(range(len(bins)), names)
    axes.set_ylim(bottom=0)
    axes.legend(loc="best")


_DRAWN: dict[Picture, Callable[[Axes, Evaluation], None]] = {
    "calibration": _calibration,
    "coverage": _coverage,
    "ranking": _ranking,
    "scores": _scores,
    "confusion": _confusion,
    "fit": _fit,
    "residuals": _residuals,
    "depth": _depth,
    "positions": _positions,
    "frequencies": _frequencies,
}


def _loss(axes: Axes, loss: LossCurve) -> None:
    for points, name, colour, marker in (
        (loss.training, "training", _NEGATIVE, None),
        (loss.validation, "validation", COLOURS["challenger"], "o"),
    ):
        if points:
            steps, losses = zip(*points, strict=True)
            axes.plot(steps, losses, color=colour, marker=marker, markersize=4, linewidth=1.3, label=name)
    if loss.best_step is not None:
        axes.axvline(loss.best_step, **_DASHED, label="kept weights")
    # Ignore the first steps: their losses are so high that later changes would be invisible.
    heights = [value for _, value in loss.training[len(loss.training) // 20 :]]
    heights += [value for _, value in loss.validation]
    low, high = min(heights), max(heights)
    axes.set_ylim(low - 0.05 * (high - low or 1), high + 0.05 * (high - low or 1))
    _name(axes, "Loss during training", "step", "loss")
    axes.legend(loc="upper right")


def caption(name: str, evaluation: Evaluation) -> str:
    """Return one sentence that explains how to read a picture."""
    bars = f"bars: {evaluation.confidence:.0%} intervals over blocks by {evaluation.bootstrap_unit}"
    share = facts_of(evaluation.objective).quantile
    fit, residuals = "On the dashed line the prediction was right.", "Centred on the dashed line: no bias."
    if share is not None:
        fit = f"{100 * share:.4g} % of the rows should lie below the dashed line."
        residuals = f"{100 * share:.4g} % of the rows should lie to the left of the dashed line."
    return {
        "calibration": f"On the dashed line predictions are right on average; {bars}.",
        "coverage": f"On the dashed line as many labels lie below the prediction as the objective says; {bars}.",
        "ranking": "The further above the dashed line, the better the order of the rows.",
        "depth": "1 is the order by relevance. The metrics look at the places up to the dashed line.",
        "scores": "The further apart the groups, the better. Where they overlap, the model cannot separate them.",
        "positions": "A line that falls uses the context: the more tokens it has seen, the better it guesses.",
        "frequencies": "Rare tokens are hard. A group with few tokens, see the percentages, weighs little.",
        "confusion": "Each row adds up to 100 %. On the diagonal the most likely class is the label.",
        "fit": fit,
        "residuals": f"{residuals} The outermost bars hold all residuals beyond them.",
        "loss": "If training and validation drift apart, the model overfits. The weights of the dashed step "
        "were kept.",
    }[name]


_LINES_OF_CLASSES = ("-", "--", "-.", ":", (0, (1, 3)))
"""Line style of each class, so that readers do not depend on colours."""
_TURNED = 4
"""Categories from which their names are turned."""


def dependence_drawn_later(found: Explanations | None, form: Form) -> dict[str, Callable[[], str]]:
    """Return a picture in base64 for each of the most important columns, by `dependence on COLUMN`, each drawn when its
    function is called."""
    if found is None:
        return {}
    return {
        f"dependence on {one.column}": lambda one=one: encoded(lambda axes: _dependence(axes, one), form)
        for one in found.dependence
    }


def _dependence(axes: Axes, one: PartialDependence) -> None:
    numbers = [value for value in one.values if isinstance(value, float)]
    at: Sequence[float] = numbers or range(len(one.values))
    for (name, means), line in zip(one.means.items(), _LINES_OF_CLASSES, strict=False):
        axes.plot(
            at,
            means,
            linestyle=line if numbers else "none",
            marker="o",
            markersize=3.5,
            linewidth=1.3,
            color=COLOURS["challenger"] if len(one.means) == 1 else None,
            label=label(name),
        )
    if not numbers:
        axes.set_xticks(at, list(map(label, one.values)), rotation=45 if len(one.values) > _TURNED else 0)
    if len(one.means) > 1:
        axes.legend(loc="best")
    _name(
        axes,
        f"Dependence on {label(one.column)}",
        label(one.column),
        "mean probability of the class" if len(one.means) > 1 else "mean prediction",
    )
