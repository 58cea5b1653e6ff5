"""Conditional parameters of a space: a parameter with `when` exists only beside some values of other parameters.

Here: the order in which parameters are drawn, the check of the conditions, and all points of a space. Not here: the
values of one parameter (`spec`).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, TypeVar

from pydantic import Field

from ml_assets.foundation.sections import Section
from resources.words import did_you_mean

Scalar = bool | int | float | str | None
"""Value of a searched parameter: a JSON value without parts."""


class Conditional(Section, ABC):
    """Values of a searched parameter, and the condition under which it exists."""

    has_exact_values: ClassVar[bool] = True
    """True if a drawn value equals a value of the file. A step of 0.1 from 0 reaches 0.30000000000000004."""
    when: dict[str, Annotated[tuple[Scalar, ...], Field(min_length=1)]] = Field(default_factory=dict)
    """Other parameter (`hyperparameters.<key>` or `training.<key>`) → its values beside which this one exists. With
    several entries, all must hold. Where it does not exist, the declared value counts. Not given: it always exists."""

    @abstractmethod
    def values(self) -> Sequence[Scalar] | None:
        """Return all values; None for a continuous range."""

    @abstractmethod
    def holds(self, value: Scalar) -> bool:
        """True if `value` is one of the values."""

    def exists(self, beside: Mapping[str, Scalar]) -> bool:
        """True beside these values of other parameters. A parent that does not exist itself has no value."""
        return all(name in beside and beside[name] in values for name, values in self.when.items())


Dimension = TypeVar("Dimension", bound=Conditional)


def parents_first(dimensions: Mapping[str, Dimension]) -> dict[str, Dimension]:
    """Return the parameters in their declared order, but each after those that its condition names.

    Parameters of a circle, and those behind it, are left out.
    """
    ordered: dict[str, Dimension] = {}

    def is_next(name: str) -> bool:
        return name not in ordered and dimensions[name].when.keys() <= ordered.keys()

    while (name := next(filter(is_next, dimensions), None)) is not None:
        ordered[name] = dimensions[name]
    return ordered


def points(dimensions: Mapping[str, Conditional]) -> Iterator[dict[str, Scalar]]:
    """Yield each point of a space with parents first once; the last parameter changes first.

    A point holds the parameters that exist beside its other values. A continuous range has no points.
    """
    ordered = list(dimensions.items())

    def from_place(place: int, point: dict[str, Scalar]) -> Iterator[dict[str, Scalar]]:
        if place == len(ordered):
            yield point
            return
        name, one = ordered[place]
        if not one.exists(point):
            yield from from_place(place + 1, point)
            return
        for value in one.values() or ():
            yield from from_place(place + 1, {**point, name: value})

    yield from from_place(0, {})


def wrong_conditions(dimensions: Mapping[str, Conditional]) -> Iterator[tuple[str, str]]:
    """Yield each parameter whose condition can never hold, with the reason."""
    unknown = False
    for name, one in dimensions.items():
        for parent, values in one.when.items():
            if parent not in dimensions:
                unknown = True
                yield name, f"its `when` names {parent}, not in the space{did_you_mean(parent, dimensions)}"
            elif not dimensions[parent].has_exact_values:
                yield (
                    name,
                    f"its `when` names values of {parent}, but a draw from a range of real numbers hardly ever equals "
                    f"one: give {parent} choices",
                )
            elif never := [value for value in values if not dimensions[parent].holds(value)]:
                yield name, f"its `when` names {parent} {never[0]!r}, a value that {parent} never has"
    ordered = parents_first(dimensions)
    stuck = [name for name in dimensions if name not in ordered]
    if stuck and not unknown:
        circle = _circle(stuck[0], dimensions, ordered)
        yield circle[0], f"its `when` goes in a circle, {' → '.join(circle)}: remove one of these conditions"


def _circle(
    name: str, dimensions: Mapping[str, Conditional], ordered: Mapping[str, Conditional]
) -> list[str]:
    """Return a circle of conditions at or behind `name`, which `parents_first` left out."""
    path = [name]
    while path.count(path[-1]) == 1:
        path.append(next(parent for parent in dimensions[path[-1]].when if parent not in ordered))
    return path[path.index(path[-1]) :]
