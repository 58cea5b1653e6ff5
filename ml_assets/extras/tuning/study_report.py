"""Report of a study for people: one self-contained page of HTML, and its summary as Markdown, with their pictures.

This module only arranges numbers and sentences. The layout is `study.html.j2`. Pictures are SVG in the report, PNG
on an asset page. Not here: the document with all numbers (`study_result`), the place of both (`tuning.chosen`).
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import matplotlib

from ml_assets.extras.tuning.optuna_parts import LEAST_TRIALS
from ml_assets.foundation.reports.page import INK, SIZE, Axes, Draw, Form, as_markdown, encoded, rendered
from ml_assets.foundation.reports.text import count, in_markdown, label, number, table_in_markdown
from ml_assets.model.steps.search_space import Choices, FloatRange, IntRange, Scalar, SpaceSection
from ml_assets.model.steps.study_metric import BY_LOSS, StudyMetric
from ml_assets.model.steps.study_result import StudyResult, TrialOutcome, each_training
from resources.words import counted

LISTED = 40
"""Trials that the report lists: those with the lowest loss. The document has all."""


@dataclass(frozen=True, kw_only=True)
class StudyReport:
    """Finished study, and all that its report shows."""

    result: StudyResult
    space: SpaceSection
    importance: Mapping[str, float]
    """Parameter → share of the importance; empty if there are too few trials."""
    lineage: Mapping[str, str]
    """Name → identifier or address."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """One line of the costs of a study."""

    name: str
    spent: float
    full: float | None
    """Cost of the full search: all epochs of all trials. Failed trials do not count. None for scripts, whose number of
    epochs is not known."""

    @property
    def saved(self) -> float | None:
        """Share of the full search that was not spent; None if it is not known."""
        return 1 - self.spent / self.full if self.full else None

    @property
    def figures(self) -> tuple[str, str]:
        """Spent and full, as text; the full cost is empty if it is not known."""
        if self.full is None:
            return number(self.spent), ""
        if self.name == "epochs":
            return count(round(self.spent)), count(round(self.full))
        return number(self.spent), number(self.full)


_HOURS = "worker hours"
"""Not GPU hours: those follow from reservations, which the runs of the trials have."""


def costs(result: StudyResult) -> list[Cost]:
    """Return epochs and hours that the study spent, against the full search; of a script only the hours.

    Hours that a trial did not train are estimated by its own seconds per epoch. A training, or a part of it, that is
    older than the study cost it nothing, nor did the training of equal values of an earlier trial.
    """
    counting = [one for one in result.trials if one.state != "failed"]
    own = each_training(counting)
    hours = sum(one.own_worker_seconds for one in own) / 3600
    if not all(one.most_epochs and one.epochs for one in counting):
        return [Cost(name=_HOURS, spent=hours, full=None)]
    return [
        Cost(
            name="epochs",
            spent=sum(one.epochs - one.epochs_before for one in own),
            full=sum(one.most_epochs for one in counting),
        ),
        Cost(
            name=_HOURS,
            spent=hours,
            full=sum(one.worker_seconds * one.most_epochs / one.epochs for one in counting) / 3600,
        ),
    ]


def _left_out(result: StudyResult) -> str:
    failed = [one.own_worker_seconds for one in result.trials if one.state == "failed"]
    if not failed:
        return ""
    return f"{counted(len(failed), 'failed trial')} with {number(sum(failed) / 3600)} {_HOURS} left out"


def saved_by(result: StudyResult) -> str:
    """Return the parts of the saved epochs in a few words; empty if none was saved."""
    by_pruner, budget = result.epochs_saved
    if not budget:  # scripts
        return ""
    early = sum(one.most_epochs - one.epochs for one in result.trials if one.state == "finished")
    counting = [one for one in result.trials if one.state != "failed"]
    once = sum(one.epochs for one in counting) - sum(
        one.epochs - one.epochs_before for one in each_training(counting)
    )
    parts = [
        (by_pruner, f"pruner {result.pruner}"),
        (early, "early stopping"),
        (once, "trainings that existed"),
    ]
    said = " and ".join(f"{epochs / budget:.0%} by {name}" for epochs, name in parts if epochs)
    return f"epochs saved: {said}" if said else ""


def render(report: StudyReport) -> str:
    """Return the HTML. A pure function: the same report gives the same bytes."""
    result, space = report.result, report.space
    drawn = study_pictures(result, space, report.importance, form="svg")
    by_importance = sorted(space.dimensions, key=lambda name: -report.importance.get(name, 0.0))
    listed = _best_first(result)
    return rendered(
        __package__ or "",
        "study.html.j2",
        {"value": _written},
        report=report,
        result=result,
        chosen=result.chosen,
        parameters=[(brief(space.dimensions)[name], name, space.dimensions[name]) for name in by_importance],
        ranges={name: _range(values) for name, values in space.dimensions.items()},
        metric=result.compared_by,
        few="" if report.importance else _too_few(result),
        costs=costs(result),
        about_costs="; ".join(one for one in (saved_by(result), _left_out(result)) if one),
        hours=_HOURS,
        trials=listed[:LISTED],
        hidden=len(listed) - LISTED,
        shown_parameters=[(name, brief(space.dimensions)[name]) for name in by_importance[:MOST_AXES]],
        columns=5 + (not result.compared_by.is_validation_loss) + len(by_importance[:MOST_AXES]),
        pictures=drawn,
        captions={name: caption(name, result.compared_by) for name in drawn},
        colour=CHOSEN,
        ended=_ended(result),
    )


def summary_markdown(report: StudyReport, images: Mapping[str, str] | None = None) -> str:
    """Return choice, costs and pictures as Markdown for an asset page.

    `images` are base64 PNGs by name; they are drawn unless given.
    """
    result = report.result
    lines = [f"**Trial {result.chosen.number} is chosen**: {in_markdown(result.reason)}.", ""]
    lines += [
        f"* {one.figures[0]} {one.name}"
        + ("" if one.saved is None else f" of {one.figures[1]} of the full search, {one.saved:.0%} saved")
        for one in costs(result)
    ]
    rows: list[tuple[str, ...]] = []
    for name, values in report.space.dimensions.items():
        chosen = _written(result.chosen.parameters[name]) if name in result.chosen.parameters else "not used"
        share = f"{report.importance[name]:.0%}" if name in report.importance else ""
        rows.append((name, chosen, _range(values), share))
    lines += ["", *table_in_markdown(("parameter", "chosen", "searched", "importance"), rows)]
    drawn = study_pictures(result, report.space, report.importance) if images is None else images
    return "\n".join([*lines, "", *as_markdown(drawn)])


def _best_first(result: StudyResult) -> list[TrialOutcome]:
    """Return all trials: the finished ones by the metric, then the paused ones by loss, then those without a loss."""
    order = ("finished", "paused", "failed")

    def place(one: TrialOutcome) -> tuple[int, float, int]:
        loss = result.compared_by.loss_of(one) if one.state == "finished" else one.validation_loss
        return order.index(one.state), float("inf") if loss is None else loss, one.number

    return sorted(result.trials, key=place)


def _too_few(result: StudyResult) -> str:
    counting = "trials with a loss" if result.compared_by.is_validation_loss else "finished trials"
    return f"Importance needs {LEAST_TRIALS} {counting}."


def _ended(result: StudyResult) -> str:
    states: Sequence[str] = [one.state for one in result.trials]
    return ", ".join(
        f"{states.count(state)} {state}" for state in ("finished", "paused", "failed") if state in states
    )


def _range(values: FloatRange | IntRange | Choices) -> str:
    only = "".join(
        f"; only with {name.partition('.')[2]} {' or '.join(_written(one) for one in beside)}"
        for name, beside in values.when.items()
    )
    if isinstance(values, Choices):
        return ", ".join(_written(one) for one in values.choices) + only
    low, high = values.ends()
    return f"{_written(low)} to {_written(high)}{', log' if values.log else ''}{only}"


def _written(value: Scalar) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "–" if value is None else f"{value}"


CHOSEN = "#1d5fa6"
"""Colour of the chosen trial."""
_LOOKS = {"finished": ("#7f93a8", "o"), "paused": ("#d9822b", "d"), "failed": ("#b4483e", "x")}
"""End of a trial → its colour and marker."""
MOST_AXES = 8
"""Parameters that a picture shows: the most important ones."""
_WIDE = (8.6, 3.0)
_NOT_USED = -0.12
"""Height at which a trial crosses the axis of a parameter that it did not have."""
_MOST_TICKS = 8
"""Choices of a parameter up to which each has its name on the axis."""


def study_pictures(
    result: StudyResult, space: SpaceSection, importance: Mapping[str, float], *, form: Form = "png"
) -> dict[str, str]:
    """Return each picture in base64 by name. `importance` orders the parameters.

    A PNG has less than 50 kB, small enough for the metadata of an asset. The same study gives the same bytes.
    """
    drawings: dict[str, tuple[Draw, tuple[float, float]]] = {
        "history": (lambda axes: _history(axes, result), SIZE),
    }
    if any(one.curve for one in result.trials):
        drawings["curves"] = (lambda axes: _curves(axes, result), SIZE)
    drawings["parallel"] = (lambda axes: _parallel(axes, result, space, importance), _WIDE)
    return {name: encoded(draw, form, size) for name, (draw, size) in drawings.items()}


def caption(name: str, metric: StudyMetric) -> str:
    """Return one sentence that explains how to read a picture."""
    if metric.is_validation_loss:
        each, lost, better = (
            "lowest validation loss",
            "Losses above the frame lie on its upper edge.",
            "lower",
        )
    else:
        each, lost = (
            metric.in_words,
            "Trials that are worse than the frame, or have no value, lie on its edge.",
        )
        better = "better"
    return {
        "history": f"Each trial with its {each}; the line is the best finished trial so far. {lost}",
        "curves": "Lowest validation loss so far, after each epoch. To the right of an end lie the epochs that the "
        "trial did not train.",
        "parallel": f"Each line is a trial: its values, and at the right its {each}. Darker is {better}; "
        "dashed: paused.",
    }[name]


def brief(names: Iterable[str]) -> dict[str, str]:
    """Return parameter → its key, such as `hidden`; the whole name if two parameters have the same key."""
    keys = {name: name.partition(".")[2] for name in names}
    often = Counter(keys.values())
    return {name: key if often[key] == 1 else name for name, key in keys.items()}


def _span(losses: Sequence[float]) -> tuple[float, float]:
    """Return the ends of an axis on which most of these losses lie, with room above them."""
    ordered = sorted(losses)
    best, most = ordered[0], ordered[math.ceil(0.85 * len(ordered)) - 1]
    return best, best + 1.4 * (most - best) if most > best else best + (abs(best) or 1.0) * 0.1


def _losses(result: StudyResult) -> list[float]:
    """Return losses that can be compared: of finished trials or, if these are few, of all trials."""
    shown = result.finished if len(result.finished) > 2 else result.trials
    return [loss for one in shown if (loss := result.compared_by.loss_of(one)) is not None]


def _frame(axes: Axes, span: tuple[float, float], metric: StudyMetric) -> float:
    """Set the axis of losses; return the end of the worst. If more is better, it is turned and shows the metric."""
    best, top = span
    axes.set_ylim(best - 0.06 * (top - best), top + 0.04 * (top - best))
    axes.set_ylabel(_axis_name(metric))
    if metric.sign < 0:
        axes.invert_yaxis()
        axes.yaxis.set_major_formatter(_turned)
    return top


def _axis_name(metric: StudyMetric) -> str:
    return "validation loss" if metric.is_validation_loss else label(metric.name)


def _turned(loss: float, _: int | None) -> str:
    return number(-loss)


def _legend(axes: Axes) -> None:
    """Place the legend beside the title, where it hides no trial."""
    axes.legend(
        loc="lower right",
        bbox_to_anchor=(1.02, 0.985),
        ncols=4,
        columnspacing=1.0,
        handletextpad=0.4,
        handlelength=1.2,
    )


def _history(axes: Axes, result: StudyResult) -> None:
    loss_of = result.compared_by.loss_of
    top = _frame(axes, _span(_losses(result)), result.compared_by)
    for state, (colour, marker) in _LOOKS.items():
        at = [(one.number, _clipped(loss_of(one), top)) for one in result.trials if one.state == state]
        if at:
            axes.scatter(*zip(*at, strict=True), color=colour, marker=marker, s=22, label=state, zorder=3)
    done = sorted(result.finished, key=lambda one: one.number)
    best = list(accumulate((_clipped(loss_of(one), top) for one in done), min))
    last = max(one.number for one in result.trials)
    axes.step(
        [*(one.number for one in done), last + 0.5],
        [*best, best[-1]],
        where="post",
        color=CHOSEN,
        linewidth=1.4,
    )
    chosen = result.chosen
    axes.scatter(
        [chosen.number], [_clipped(loss_of(chosen), top)], color=CHOSEN, s=46, zorder=4, label="chosen"
    )
    axes.set_title("History")
    axes.set_xlabel("trial")
    axes.set_xlim(-0.8, last + 0.8)
    axes.xaxis.get_major_locator().set_params(integer=True)
    _legend(axes)


def _curves(axes: Axes, result: StudyResult) -> None:
    # Always of validation losses: no other metric is measured after an epoch.
    top = _frame(axes, _span([loss for one in result.trials for _, loss in one.curve]), BY_LOSS)
    chosen = result.chosen.number
    named: set[str] = set()
    for one in sorted(result.trials, key=lambda one: (one.number == chosen, one.state == "finished")):
        if not one.curve:
            continue
        colour, marker = _LOOKS[one.state]
        is_chosen = one.number == chosen
        colour, name = (CHOSEN, "chosen") if is_chosen else (colour, one.state)
        epochs = [epoch for epoch, _ in one.curve]
        losses = [loss for _, loss in one.curve]
        axes.plot(
            epochs,
            losses,
            color=colour,
            linewidth=2.0 if is_chosen else 0.9,
            alpha=1.0 if is_chosen else 0.75,
            label=None if name in named else name,
        )
        axes.plot(epochs[-1], _clipped(losses[-1], top), marker=marker, markersize=4, color=colour)
        named.add(name)
    axes.set_title("Learning curves")
    axes.set_xlabel("epoch")
    axes.set_xlim(0.5, max(max(one.most_epochs, one.epochs) for one in result.trials) + 0.5)
    axes.xaxis.get_major_locator().set_params(integer=True)
    _legend(axes)


@dataclass(frozen=True)
class _Axis:
    """Vertical axis of the parallel coordinates, from 0 to 1."""

    name: str
    height: Callable[[TrialOutcome], float]
    ticks: Sequence[tuple[float, str]]


def _parallel(axes: Axes, result: StudyResult, space: SpaceSection, importance: Mapping[str, float]) -> None:
    labels = brief(space.dimensions)
    names = sorted(space.dimensions, key=lambda name: -importance.get(name, 0.0))[:MOST_AXES]
    metric, (best, top) = result.compared_by, _span(_losses(result))
    worse = "≥" if metric.sign > 0 else "≤"
    loss = _Axis(
        _axis_name(metric),
        lambda one: (_clipped(metric.loss_of(one), top) - best) / (top - best),
        [
            (0.0, number(metric.sign * best)),
            (0.5, number(metric.sign * (best + top) / 2)),
            (1.0, f"{worse} {number(metric.sign * top)}"),
        ],
    )
    every = [*(_axis_of(name, space.dimensions[name], labels[name]) for name in names), loss]
    shown = [one for one in result.trials if metric.loss_of(one) is not None]
    shades = matplotlib.colormaps["Greys_r"]
    for one in sorted(shown, key=lambda one: -loss.height(one)):
        is_chosen = one.number == result.chosen.number
        heights = [axis.height(one) for axis in every]
        axes.plot(
            range(len(every)),
            heights,
            color=CHOSEN if is_chosen else shades(0.25 + 0.5 * heights[-1]),
            linewidth=2.2 if is_chosen else 1.0,
            linestyle=(0, (3, 2)) if one.state == "paused" else "-",
            alpha=1.0 if is_chosen else 0.8,
            zorder=3 if is_chosen else 2,
            label="chosen" if is_chosen else None,
        )
    for at, axis in enumerate(every):
        axes.axvline(at, color=INK, linewidth=0.8)
        for height, text in axis.ticks:
            axes.text(
                at + 0.015 * len(every),
                height,
                label(text),
                fontsize=7,
                va="center",
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.6},
                zorder=4,
            )
    axes.grid(visible=False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.set_yticks([])
    axes.set_xticks(range(len(every)), [axis.name for axis in every])
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-0.15, len(every) - 1 + 0.12 * len(every))
    axes.set_ylim(-0.18, 1.08)
    axes.set_title("Values and loss" if metric.is_validation_loss else "Values and metric")
    _legend(axes)


def _axis_of(name: str, values: FloatRange | IntRange | Choices, title: str) -> _Axis:
    if isinstance(values, Choices):
        ends = values.choices
        places: dict[Scalar, float] = {one: (i + 0.5) / len(ends) for i, one in enumerate(ends)}
        ticks = [(place, f"{one}") for one, place in places.items()] if len(ends) <= _MOST_TICKS else []
        return _Axis(
            label(title),
            lambda one: places[one.parameters[name]] if name in one.parameters else _NOT_USED,
            ticks,
        )
    scale = math.log if values.log else float
    low, high = values.ends()
    width = scale(high) - scale(low)

    def height(one: TrialOutcome) -> float:
        value = one.parameters.get(name)
        if not isinstance(value, int | float):
            return _NOT_USED
        return (scale(value) - scale(low)) / width if width else 0.5

    middle = math.exp((math.log(low) + math.log(high)) / 2) if values.log else (low + high) / 2
    return _Axis(label(title), height, [(0.0, f"{low:.4g}"), (0.5, f"{middle:.3g}"), (1.0, f"{high:.4g}")])


def _clipped(loss: float | None, top: float) -> float:
    """Return the height of a loss within the frame; a trial without a loss lies on its upper edge."""
    return top if loss is None else min(loss, top)
