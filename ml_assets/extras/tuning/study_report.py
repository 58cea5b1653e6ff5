"""Report of a study for people: one self-contained page of HTML, and its summary as Markdown.

This module only arranges numbers and sentences. The layout is `study.html.j2`. Not here: the document with all numbers
(`study_result`), the place of both (`tuning.chosen`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ml_assets.extras.tuning.importance import LEAST_TRIALS
from ml_assets.extras.tuning.study_pictures import CHOSEN, MOST_AXES, brief, caption, study_pictures
from ml_assets.foundation.reports.page import as_markdown, rendered
from ml_assets.foundation.reports.text import count, in_markdown, number, table_in_markdown
from ml_assets.model.steps.search_space import Choices, FloatRange, IntRange, Scalar, SpaceSection
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
        few=f"Importance needs {LEAST_TRIALS} trials with a loss." if not report.importance else "",
        costs=costs(result),
        about_costs="; ".join(one for one in (saved_by(result), _left_out(result)) if one),
        hours=_HOURS,
        trials=listed[:LISTED],
        hidden=len(listed) - LISTED,
        shown_parameters=[(name, brief(space.dimensions)[name]) for name in by_importance[:MOST_AXES]],
        pictures=drawn,
        captions={name: caption(name) for name in drawn},
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
    """Return all trials: the finished ones by loss, then the paused ones by loss, then those without a loss."""
    order = ("finished", "paused", "failed")

    def place(one: TrialOutcome) -> tuple[int, float, int]:
        loss = float("inf") if one.validation_loss is None else one.validation_loss
        return order.index(one.state), loss, one.number

    return sorted(result.trials, key=place)


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
