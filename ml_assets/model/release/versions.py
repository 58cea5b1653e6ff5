"""Semantic versions of models.

Major: input columns, label, objective or classes changed. Minor: code or configuration changed. Patch: only the data
changed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, order=True)
class SemanticVersion:
    """`major.minor.patch`, ordered."""

    major: int
    minor: int
    patch: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Inverse of `str`."""
        major, minor, patch = (int(part) for part in text.split("."))
        return cls(major, minor, patch)

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


@dataclass(frozen=True)
class Numbered:
    """Facts of a registered version that the next number depends on."""

    version: SemanticVersion
    schema_digest: str
    recipe_digest: str


def next_version(known: Iterable[Numbered], schema_digest: str, recipe_digest: str) -> SemanticVersion:
    """Return the number of a new version, counted from the highest in `known`; the first is 1.0.0."""
    newest = max(known, key=lambda one: one.version, default=None)
    if newest is None:
        return SemanticVersion(1, 0, 0)
    number = newest.version
    if newest.schema_digest != schema_digest:
        return SemanticVersion(number.major + 1, 0, 0)
    if newest.recipe_digest != recipe_digest:
        return SemanticVersion(number.major, number.minor + 1, 0)
    return SemanticVersion(number.major, number.minor, number.patch + 1)
