"""Base of every YAML section: strict, and helpful about typos.

Sections are plain pydantic models. They are never `Resolvable`, because templating would turn every `Literal` into
`T | str` and accept a wrong word. Stages and components share this base; nothing here knows Dagster.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any
from zoneinfo import ZoneInfo, available_timezones

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails

from resources.documented import Documented


class WrongKey(ValueError):
    """A section does not have this key."""

    def __init__(self, sentence: str, meant: str | None) -> None:
        """Keep the right key in `meant`; None if no key is near."""
        super().__init__(sentence)
        self.meant = meant


def refuse_at(title: str, why: Mapping[tuple[str | int, ...], str | ValueError]) -> None:
    """Raise a `ValidationError` with each sentence of `why` at its path of keys; do nothing if `why` is empty.

    A plain `ValueError` of a section would be reported at the section's line, not at the key's.
    """
    # A built-in error type: Dagster rebuilds the error with line numbers and knows no others.
    errors = [
        InitErrorDetails(
            type="value_error",
            loc=path,
            input=None,
            ctx={"error": said if isinstance(said, ValueError) else ValueError(said)},
        )
        for path, said in why.items()
    ]
    if errors:
        raise ValidationError.from_exception_data(title, errors)


def refuse_unknown_keys(section: str, value: Any, known: Iterable[str], at: tuple[str, ...] = ()) -> None:
    """Raise a `ValidationError` at each key of the mapping `value` that is not `known`, below the path `at`.

    The message names the nearest known key, or all known keys if none is near.
    """
    if not isinstance(value, dict):
        return
    legal = sorted(known)
    why: dict[tuple[str | int, ...], str | ValueError] = {}
    for key in value:
        if key in legal:
            continue
        nearest, *_ = [*get_close_matches(str(key), legal, n=1), None]
        hint = f"did you mean '{nearest}'?" if nearest else f"known keys: {', '.join(legal)}"
        why[*at, key] = WrongKey(f"unknown key '{key}': {hint}", nearest)
    refuse_at(section, why)


def _must_be_a_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:  # KeyError: not found; OSError: a folder of zones
        nearest = get_close_matches(name, sorted(available_timezones()), n=1)
        remedy = f"did you mean '{nearest[0]}'?" if nearest else "write a name such as Europe/Berlin"
        raise ValueError(f"'{name}' is not a time zone: {remedy}") from error
    return name


TimeZone = Annotated[str, AfterValidator(_must_be_a_zone)]
"""IANA name of a time zone that this machine knows."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_]+$", max_length=63)]
"""Name of a table, a model or a group: legal for Dagster, and no longer than a label of Kubernetes."""

Seed = Annotated[int, Field(ge=0, lt=2**63)]
"""Seed of random numbers, in the range that numpy and torch both accept."""

Partitions = Annotated[int, Field(ge=0, le=36_525)]
"""Number of partitions, at most a century of days."""


class Section(Documented, BaseModel):
    """A part of a `defs.yaml`. Unknown keys are errors that name the nearest right key; numbers are finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _name_typos(cls, value: Any) -> Any:
        refuse_unknown_keys(cls.__name__, value, cls.model_fields)
        return value
