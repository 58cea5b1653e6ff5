"""Figures of a model's days among the artifacts: one JSON file a day, and pictures of them over time.

Not here: the figures of a day (`performance`).
"""

import math
from collections.abc import Callable, Sequence

from ml_assets.foundation.reports.page import Axes, Draw, encoded
from ml_assets.foundation.reports.text import label
from ml_assets.model.evaluation.metrics.metrics import metrics_of
from ml_assets.use.live.performance import DayFigures, VersionFigures
from ml_assets.use.live.scored_rows import LOOK_BACK, REFERENCE_DAYS, Profiles, Role
from resources.artifacts import Artifacts
from resources.files import whole_file

LIVE = "live"
"""Folder of all figures among the artifacts: `live/<model>/<partition>.json`."""
DRAWN_DAYS = 60
"""Newest days that a picture shows."""
DRAWN_SLICES = 24
"""Largest slices that a picture shows."""
_COLOURS: dict[Role, str] = {"production": "#1d5fa6", "canary": "#d9822b"}
_NAMED_DAYS = 6
"""Days named on the axis of a picture."""


def store_day(artifacts: Artifacts, figures: DayFigures) -> str:
    """Store the figures of a day in place of earlier ones, and return the file's address. Raises `ArtifactsError`."""
    name, file = f"{LIVE}/{figures.model}", f"{figures.partition}.json"
    with whole_file(artifacts.folder(name) / file) as target:
        target.write_text(figures.model_dump_json(indent=1))
    artifacts.push(name, [file])
    return f"{artifacts.address(name)}/{file}"


def days_up_to(artifacts: Artifacts, model: str, partition: str, most: int = DRAWN_DAYS) -> list[DayFigures]:
    """Return the newest `most` stored days up to `partition`, oldest first. Raises `ArtifactsError`."""
    return _read(artifacts, model, lambda key: key <= partition, most)


def stored_days(artifacts: Artifacts, model: str, *, after: str) -> list[DayFigures]:
    """Return the newest stored days after partition `after`, oldest first. Raises `ArtifactsError`."""
    return _read(artifacts, model, lambda key: key > after, DRAWN_DAYS)


def states_of_days(artifacts: Artifacts, model: str) -> list[str]:
    """Return a line for each stored day, which changes with its figures. Raises `ArtifactsError`."""
    return sorted(map(" ".join, artifacts.states(f"{LIVE}/{model}").items()))


def earlier_profiles(artifacts: Artifacts, model: str, partition: str) -> dict[str, dict[str, Profiles]]:
    """Return bundle → its first partitions before `partition` that were measured from the log → their profiles.

    Raises `ArtifactsError`.
    """
    found: dict[str, dict[str, Profiles]] = {}
    for day in _read(artifacts, model, lambda key: key < partition, LOOK_BACK):
        for one in day.versions:
            of_bundle = found.setdefault(one.bundle_digest, {})
            if one.profiles and len(of_bundle) < REFERENCE_DAYS:
                of_bundle[day.partition] = (*of_bundle.get(day.partition, ()), *one.profiles)
    return found


def is_measured(artifacts: Artifacts, model: str, partition: str) -> bool:
    """Return True if figures of a day are stored. Raises `ArtifactsError`."""
    return artifacts.exists(f"{LIVE}/{model}", f"{partition}.json")


def _read(artifacts: Artifacts, model: str, is_wanted: Callable[[str], bool], most: int) -> list[DayFigures]:
    name = f"{LIVE}/{model}"
    keys = (file.removesuffix(".json") for file in artifacts.files(name) if file.endswith(".json"))
    files = [f"{key}.json" for key in sorted(filter(is_wanted, keys))[-most:]]
    folder = artifacts.pull(name, files) if files else artifacts.folder(name)
    return [DayFigures.model_validate_json((folder / file).read_text()) for file in files]


def pictures(days: Sequence[DayFigures]) -> dict[str, str]:
    """Return PNGs in base64: drift of the days against earlier ones and against the holdout, the first metric of the
    objective once a day has labels, and its value in each slice of the newest day."""
    drawn: dict[str, Draw] = {}
    first = metrics_of(days[-1].objective)[0]

    def of_each(value: Callable[[VersionFigures], float | None]) -> dict[tuple[str, Role], float]:
        return {
            (day.partition, one.role): found
            for day in days
            for one in day.versions
            if (found := value(one)) is not None
        }

    moved = of_each(lambda one: one.largest_drift and one.largest_drift.psi_excess)
    from_holdout = of_each(lambda one: one.largest_holdout_drift and one.largest_holdout_drift.psi_excess)
    measured = of_each(lambda one: one.metrics.get(first.name))
    if moved:
        drawn["drift"] = lambda axes: _lines(axes, days, moved, "Drift of predictions", "PSI beyond chance")
    if from_holdout:
        drawn["holdout drift"] = lambda axes: _lines(
            axes, days, from_holdout, "Drift from the holdout", "PSI beyond chance"
        )
    if measured:
        drawn[first.name] = lambda axes: _lines(axes, days, measured, f"Live {first.label}", first.label)
    if any(part.metrics for one in days[-1].versions for part in one.slices):
        drawn["slices"] = lambda axes: _slices(axes, days[-1], first.name, first.label)
    return {name: encoded(draw, "png") for name, draw in drawn.items()}


def _lines(
    axes: Axes, days: Sequence[DayFigures], values: dict[tuple[str, Role], float], title: str, unit: str
) -> None:
    names = [day.partition for day in days]
    for role, colour in _COLOURS.items():
        points = [values.get((name, role), math.nan) for name in names]
        if not all(map(math.isnan, points)):
            axes.plot(range(len(names)), points, color=colour, marker="o", markersize=3, label=role)
    shown = range(0, len(names), math.ceil(len(names) / _NAMED_DAYS))
    axes.set_xticks(list(shown), [names[n] for n in shown], rotation=30, ha="right")
    if min(values.values()) == 0:
        axes.set_ylim(bottom=0)
    axes.set_title(title)
    axes.set_ylabel(unit)
    axes.legend()


def _slices(axes: Axes, day: DayFigures, metric: str, title: str) -> None:
    """Draw the metric of each slice with its interval, production above canary, and a line at the value of all rows."""
    rows = {part.slice: part.rows for one in day.versions for part in one.slices if metric in part.metrics}
    shown = sorted(rows, key=lambda name: -rows[name])[:DRAWN_SLICES]
    places = {name: len(shown) - 1 - n for n, name in enumerate(name for name in rows if name in shown)}
    for one in day.versions:
        shift = 0.15 if one.role == "production" else -0.15
        colour = _COLOURS[one.role]
        points = [
            (places[part.slice] + shift, found)
            for part in one.slices
            if part.slice in places
            and (found := part.metrics.get(metric)) is not None
            and found.value is not None
        ]
        if not points:
            continue
        for place, found in points:
            if found.low is not None:
                axes.plot([found.low, found.high], [place, place], color=colour, linewidth=1)
        axes.plot(
            [found.value for _, found in points],
            [place for place, _ in points],
            "o",
            color=colour,
            markersize=3,
            label=one.role,
        )
        if (whole := one.metrics.get(metric)) is not None:
            axes.axvline(whole, color=colour, linewidth=0.8, linestyle=":")
    axes.set_yticks(list(places.values()), list(map(label, places)))
    axes.set_title(f"{title} by slice, {day.partition}")
    axes.legend()
