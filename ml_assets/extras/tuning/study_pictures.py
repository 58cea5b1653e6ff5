"""Pictures of a study: SVG for the report, small PNG for an asset page. Computes nothing."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import matplotlib

from ml_assets.foundation.reports.page import INK, SIZE, Axes, Draw, Form, encoded
from ml_assets.foundation.reports.text import label, number
from ml_assets.model.steps.search_space import Choices, FloatRange, IntRange, Scalar, SpaceSection
from ml_assets.model.steps.study_result import StudyResult, TrialOutcome

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


def caption(name: str) -> str:
    """Return one sentence that explains how to read a picture."""
    return {
        "history": "Each trial with its lowest validation loss; the line is the best finished trial so far. "
        "Losses above the frame lie on its upper edge.",
        "curves": "Lowest validation loss so far, after each epoch. To the right of an end lie the epochs that the "
        "trial did not train.",
        "parallel": "Each line is a trial: its values, and at the right its lowest validation loss. Darker is lower; "
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
    every = [one for one in result.trials if one.validation_loss is not None]
    shown = result.finished if len(result.finished) > 2 else every
    return [one.validation_loss for one in shown if one.validation_loss is not None]


def _frame(axes: Axes, span: tuple[float, float]) -> float:
    """Set the loss axis; return its upper end."""
    best, top = span
    axes.set_ylim(best - 0.06 * (top - best), top + 0.04 * (top - best))
    axes.set_ylabel("validation loss")
    return top


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
    top = _frame(axes, _span(_losses(result)))
    for state, (colour, marker) in _LOOKS.items():
        at = [(one.number, _clipped(one.validation_loss, top)) for one in result.trials if one.state == state]
        if at:
            axes.scatter(*zip(*at, strict=True), color=colour, marker=marker, s=22, label=state, zorder=3)
    done = sorted(result.finished, key=lambda one: one.number)
    best = list(accumulate((_clipped(one.validation_loss, top) for one in done), min))
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
        [chosen.number], [_clipped(chosen.validation_loss, top)], color=CHOSEN, s=46, zorder=4, label="chosen"
    )
    axes.set_title("History")
    axes.set_xlabel("trial")
    axes.set_xlim(-0.8, last + 0.8)
    axes.xaxis.get_major_locator().set_params(integer=True)
    _legend(axes)


def _curves(axes: Axes, result: StudyResult) -> None:
    top = _frame(axes, _span([loss for one in result.trials for _, loss in one.curve]))
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
    best, top = _span(_losses(result))
    loss = _Axis(
        "validation loss",
        lambda one: (_clipped(one.validation_loss, top) - best) / (top - best),
        [(0.0, number(best)), (0.5, number((best + top) / 2)), (1.0, f"≥ {number(top)}")],
    )
    every = [*(_axis_of(name, space.dimensions[name], labels[name]) for name in names), loss]
    shown = [one for one in result.trials if one.validation_loss is not None]
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
    axes.set_title("Values and loss")
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
