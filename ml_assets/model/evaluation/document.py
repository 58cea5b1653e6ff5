"""Base class of the documents in `evaluation.json`."""

from pydantic import BaseModel, ConfigDict


class Document(BaseModel):
    """Base class: immutable; unknown keys are errors when a document is read."""

    model_config = ConfigDict(extra="forbid", frozen=True)
