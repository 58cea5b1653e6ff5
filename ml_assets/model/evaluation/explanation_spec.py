"""Declared explanations of a model: the section `explanations` of `evaluation`. Computes nothing."""

from pydantic import Field

from ml_assets.foundation.sections import Section


class ExplanationSection(Section):
    """Importance of each input column, and the mean prediction along the most important ones."""

    rows: int = Field(default=2_000, ge=100, le=50_000)
    """Holdout rows to predict again for each column and each drawn value, evenly spread over the holdout. At most
    100 if the model reads blobs; fewer above 300 columns, since each column is predicted for itself."""
