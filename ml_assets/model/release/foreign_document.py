"""Document of a model that was trained elsewhere: an ONNX graph with its inputs, golden rows and the days it has seen.

The body of a request to the API, and the file of `ml-assets register`. Its SHA-256 identifies the model from then on.
Not here: the check of the graph (`foreign_graph`), its fit to a pipeline (`model.steps.foreign`).
"""

import base64
import binascii
import hashlib
import json
from datetime import date
from functools import cached_property
from typing import Annotated, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    StringConstraints,
    field_validator,
    model_validator,
)

from ml_assets.foundation.days import Days
from resources.ledger import NotPrintable, refuse_unprintable

MOST_BYTES = 6 * 2**20
"""Bytes of the ONNX file."""
MOST_DOCUMENT_BYTES = 9 * 2**20
"""Bytes of the document, in which base64 makes three bytes four."""
MOST_GOLDEN_ROWS = 64
_MOST_INPUTS, _MOST_WORDS = 2_000, 20_000
_Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]
_Word = Annotated[str, StringConstraints(min_length=1, max_length=500)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SeenDays(_Part):
    """First and last day that the model has seen."""

    first: date
    last: date = Field(
        description="Last day of any row or label that trained the model, or by which it was chosen."
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.last < self.first:
            raise ValueError("`last` is before `first`: swap them")
        return self

    @property
    def days(self) -> Days:
        """The days from first to last."""
        return Days.of([(self.first, self.last)])


class ForeignInput(_Part):
    """Input of the graph, `[rows, 1]`: a column of the feature table."""

    name: _Name
    dtype: str = Field(
        max_length=60, description="Type of the column in the feature table, such as `float32` or `string`."
    )
    vocabulary: tuple[_Word, ...] = Field(
        (),
        max_length=_MOST_WORDS,
        description="For a categorical column: the texts that the model knows. The graph gets the empty text for null "
        "and for any other text. Empty for a number.",
    )


class ForeignRow(_Part):
    """Golden row: inputs, and the answer of the model where it was trained."""

    inputs: dict[_Name, FiniteFloat | str | None] = Field(description="Column to value; null where unknown.")
    expected: FiniteFloat | tuple[FiniteFloat, ...] = Field(
        description="Prediction; for classes, a probability for each, in the order of `classes`."
    )

    @property
    def numbers(self) -> tuple[float, ...]:
        """The expected prediction as numbers."""
        return self.expected if isinstance(self.expected, tuple) else (self.expected,)


class ForeignModel(_Part):
    """Model that was trained elsewhere, for a declared pipeline, and the partition whose holdout measures it."""

    model: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=100, examples=["store_demand"])
    partition: str = Field(max_length=40, examples=["2024-01-08"])
    origin: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=300)] = Field(
        description="What trained it, where: for people.", examples=["scikit-learn 1.7 on a laptop"]
    )
    trained_on: SeenDays
    inputs: tuple[ForeignInput, ...] = Field(min_length=1, max_length=_MOST_INPUTS)
    classes: tuple[_Word, ...] = Field(
        (), max_length=1_000, description="Classes of the label, in the order of the graph's output."
    )
    golden: tuple[ForeignRow, ...] = Field(min_length=1, max_length=MOST_GOLDEN_ROWS)
    onnx: str = Field(
        max_length=4 * MOST_BYTES // 3 + 4,
        repr=False,
        description="The ONNX file in base64: one input `[rows, 1]` for each of `inputs`, float or double for numbers "
        "(NaN where unknown) and string for categories; one output, float or double, `[rows]`, `[rows, 1]` or "
        f"`[rows, classes]`. At most {MOST_BYTES:,} bytes, ONNX's own operators, no external data.",
    )

    @field_validator("origin")
    @classmethod
    def _is_one_line(cls, origin: str) -> str:
        # Model card and dossier quote it: a line break would forge a line of them.
        try:
            refuse_unprintable(origin=origin)
        except NotPrintable as error:
            raise ValueError(str(error)) from error
        return origin

    @model_validator(mode="after")
    def _names_agree(self) -> Self:
        names = [one.name for one in self.inputs]
        if len(set(names)) < len(names):
            raise ValueError("`inputs` names a column twice: name each once")
        for place, row in enumerate(self.golden):
            if set(row.inputs) != set(names):
                raise ValueError(f"golden row {place} does not have exactly the columns of `inputs`")
            if len(row.numbers) != max(1, len(self.classes)):
                raise ValueError(
                    f"golden row {place} expects {len(row.numbers)} numbers: give one, or one for each class"
                )
        try:
            content = self.content
        except (binascii.Error, ValueError):
            raise ValueError("`onnx` is not base64: write it with `base64 -w0 FILE`") from None
        if not 0 < len(content) <= MOST_BYTES:
            raise ValueError(
                f"`onnx` has {len(content):,} bytes: at least 1 and at most {MOST_BYTES:,} are legal"
            )
        return self

    @cached_property
    def content(self) -> bytes:
        """The ONNX file."""
        return base64.b64decode(self.onnx, validate=True)

    @property
    def onnx_sha256(self) -> str:
        """SHA-256 of the ONNX file, 64 hex digits."""
        return hashlib.sha256(self.content).hexdigest()

    def to_bytes(self) -> bytes:
        """Return the canonical document."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":")).encode()

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical document, 64 hex digits."""
        return hashlib.sha256(self.to_bytes()).hexdigest()
