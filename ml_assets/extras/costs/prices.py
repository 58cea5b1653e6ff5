"""Table of prices: a YAML file that ML_ASSETS_PRICES names.

    currency: EUR
    gpu_hour: {H200: 3.50, A100 80GB: 1.80}
    core_hour: 0.04
    gib_hour: 0.005

A kind of GPU is named by words of its driver's name: `H200` prices an "NVIDIA H200". The kind with the most words wins.
Here: reading the table. Not here: hours (costs).
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field

from ml_assets.components.documents import attribute_faults, place_of, short
from ml_assets.dagster_host.yaml_documents import documents_in
from ml_assets.foundation.sections import Section

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
        documents = documents_in(file)
    except OSError as error:
        raise PricesRefused(
            f"ML_ASSETS_PRICES names {file}, which cannot be read ({error.strerror}): correct the path, or leave the "
            "variable out to see hours alone"
        ) from error
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        problem = (error.problem or error.context or "").partition("\n")[0]
        raise PricesRefused(
            f"{short(str(file))}{line}: not valid YAML: {problem}. Correct that line"
        ) from error
    if len(documents) != 1 or not isinstance(documents[0].value, dict):
        raise PricesRefused(
            f"{short(str(file))}: not a table of prices: write keys such as gpu_hour, core_hour and gib_hour"
        )
    (document,) = documents
    faults = [
        f"{place_of(document, path)} {'.'.join(map(str, path))}: {words}"
        for path, words in attribute_faults(PriceTable, document.value)
    ]
    if faults:
        raise PricesRefused(
            "\n".join(f"{one}. A price is a number of 0 or more, for an hour" for one in sorted(faults))
        )
    return PriceTable.model_validate(document.value)


def _words(name: str) -> frozenset[str]:
    return frozenset(re.split(r"[\s-]+", name.strip().lower())) - {""}
