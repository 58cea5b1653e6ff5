"""The base of every YAML section: strict, and helpful about typos.

Sections are plain pydantic models (never `Resolvable`: templating would turn every `Literal` into
`T | str` and let a wrong word pass). Stages and components share this base; nothing here knows Dagster.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import InitErrorDetails


def refuse_at(title: str, why: Mapping[tuple[str | int, ...], str]) -> None:
    """Raise a `ValidationError` with each sentence of `why` placed at its path of keys; nothing where it is empty.

    A plain `ValueError` of a section would be placed at the section's line, not at that of the key.
    """
    # A built-in error type: Dagster rebuilds the error with line numbers and knows no others.
    errors = [
        InitErrorDetails(type="value_error", loc=path, input=None, ctx={"error": ValueError(sentence)})
        for path, sentence in why.items()
    ]
    if errors:
        raise ValidationError.from_exception_data(title, errors)


def refuse_unknown_keys(title: str, value: Any, known: Iterable[str]) -> None:
    """Raise a `ValidationError` placed at each key of mapping `value` that is not `known`.

    The message names the nearest known key, or all of them where none is near.
    """
    if not isinstance(value, dict):
        return
    legal = sorted(known)
    why: dict[tuple[str | int, ...], str] = {}
    for key in value:
        if key in legal:
            continue
        nearest = get_close_matches(str(key), legal, n=1)
        hint = f"did you mean '{nearest[0]}'?" if nearest else f"known keys: {', '.join(legal)}"
        why[key,] = f"unknown key '{key}': {hint}"
    refuse_at(title, why)


class Section(BaseModel):
    """A part of a `defs.yaml`. Unknown keys are errors that name the nearest right key."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _name_typos(cls, value: Any) -> Any:
        refuse_unknown_keys(cls.__name__, value, cls.model_fields)
        return value
