"""Table of prices: a YAML file that ML_ASSETS_PRICES names.

    currency: EUR
    gpu_hour: {H200: 3.50, A100 80GB: 1.80}
    core_hour: 0.04
    gib_hour: 0.005
    monthly_budget: {store_demand: 500}

A kind of GPU is named by words of its driver's name: `H200` prices an "NVIDIA H200". The kind with the most words wins.
Here: reading the table. Not here: hours (costs), the refusal of a launch (budget).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from ml_assets.foundation.sections import Section, refuse_at

Price = Annotated[float, Field(ge=0, strict=True)]
"""Price of an hour, in the currency of the table."""


class PricesRefused(Exception):
    """The table of prices cannot be read, or a price is wrong. One line per fault, with file and line."""


class PriceTable(Section):
    """Prices of an hour."""

    currency: str = Field(default="", max_length=12, examples=["EUR"])
    """Name of the currency, for people."""
    gpu_hour: Mapping[str, Price] = Field(default_factory=dict, examples=[{"H200": 3.5}])
    """Kind of GPU → price of one for an hour."""
    core_hour: Price = 0.0
    """Price of a processor core for an hour."""
    gib_hour: Price = 0.0
    """Price of a GiB of memory for an hour."""
    monthly_budget: Mapping[str, Price] = Field(default_factory=dict, examples=[{"store_demand": 500.0}])
    """Pipeline → most money of its trainings in a calendar month, UTC."""

    @model_validator(mode="after")
    def _each_kind_is_one(self) -> Self:
        known: dict[frozenset[str], str] = {}
        said: dict[tuple[str | int, ...], str | ValueError] = {}
        for kind in self.gpu_hour:
            if not _words(kind):
                said["gpu_hour", kind] = (
                    "no GPU has this name: write words of the driver's name, such as H200"
                )
            elif (other := known.setdefault(_words(kind), kind)) != kind:
                said["gpu_hour", kind] = f"has the words of {other!r}: leave one of them out"
        refuse_at(type(self).__name__, said)
        return self

    @model_validator(mode="after")
    def _budgets_can_be_spent(self) -> Self:
        if self.monthly_budget and not any((*self.gpu_hour.values(), self.core_hour, self.gib_hour)):
            said = "no training reaches a budget without a price: add gpu_hour, core_hour or gib_hour"
            refuse_at(type(self).__name__, {("monthly_budget",): said})
        return self

    def of_gpu(self, name: str) -> float | None:
        """Return the price of a GPU with the name that its driver has; None without one."""
        words = _words(name)
        fitting = [kind for kind in self.gpu_hour if _words(kind) and _words(kind) <= words]
        best = max(fitting, key=lambda kind: (len(_words(kind)), kind), default=None)
        return None if best is None else self.gpu_hour[best]


def read_prices(file: Path | None) -> PriceTable | None:
    """Return the table in `file`; None without a file. Raises `PricesRefused`."""
    if file is None:
        return None
    try:
        text = file.read_text(encoding="utf-8")
        root: Any = yaml.compose(text, Loader=yaml.SafeLoader)
        written: Any = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as error:
        raise PricesRefused(
            f"ML_ASSETS_PRICES names {file}, which cannot be read ({error}): correct the path or the file, or leave "
            "the variable out to see hours alone"
        ) from error
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        problem = (error.problem or error.context or "").partition("\n")[0]
        raise PricesRefused(f"{file}{line}: not valid YAML: {problem}. Correct that line") from error
    # A control character; a day that is not; [[[[…
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise PricesRefused(
            f"{file}: not valid YAML: {str(error).partition(chr(10))[0]}. Correct the file"
        ) from error
    if not isinstance(written, dict):
        raise PricesRefused(
            f"{file}: not a table of prices: write keys such as gpu_hour, core_hour and gib_hour"
        )
    if twice := [*_keys_twice(root)]:
        raise PricesRefused(
            "\n".join(f"{file}:{line} {key}: is there twice: leave one of them out" for key, line in twice)
        )
    try:
        return PriceTable.model_validate(written)
    except ValidationError as error:
        faults = [
            f"{file}:{_line_of(root, one['loc'])} {'.'.join(map(str, one['loc']))}: {_said(one)}"
            for one in error.errors()
        ]
        raise PricesRefused("\n".join(faults)) from error


def _said(fault: Any) -> str:
    """Return what is wrong with a value, and the remedy."""
    words = str(fault["msg"]).removeprefix("Value error, ")
    if fault["type"] == "value_error":
        return words
    return f"{words}; found {str(fault['input'])[:40]!r}. A price is a number of 0 or more, for an hour"


def _line_of(node: Any, path: Sequence[str | int]) -> int:
    """Return the line, from 1, of a key of a YAML document, or of the nearest part around it."""
    line = node.start_mark.line + 1
    for step in path:
        entries = node.value if isinstance(node, yaml.MappingNode) else ()
        for key, value in entries:
            if key.value == str(step):
                node, line = value, key.start_mark.line + 1
                break
        else:
            break
    return line


def _keys_twice(root: yaml.MappingNode) -> Iterator[tuple[str, int]]:
    """Yield each key that a section has again, with its line, from 1. YAML takes the last value in silence."""
    sections = [("", root), *((f"{key.value}.", node) for key, node in root.value)]
    for before, section in sections:
        keys = [key for key, _ in section.value] if isinstance(section, yaml.MappingNode) else []
        for place, key in enumerate(keys):
            if any(key.value == other.value for other in keys[:place]):
                yield f"{before}{key.value}", key.start_mark.line + 1


def _words(name: str) -> frozenset[str]:
    return frozenset(re.split(r"[\s-]+", name.strip().lower())) - {""}
