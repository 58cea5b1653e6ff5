"""Document of the explanations of a model. Only data: `explanations` computes it."""

from ml_assets.model.evaluation.bootstrap import Interval
from ml_assets.model.evaluation.document import Document

UNNAMED = "prediction"
"""Name of the curve of a model whose prediction is one number."""


class ColumnImportance(Document):
    """Importance of one input column."""

    column: str
    added: Interval
    """Loss that shuffling the column adds, in the unit of the metric (of one that should be high: the part that is
    lost); intervals of all columns hold jointly."""


class PartialDependence(Document):
    """Mean prediction along one column."""

    column: str
    values: tuple[float, ...] | tuple[str, ...]
    """Ascending numbers, or categories by falling frequency."""
    means: dict[str, tuple[float, ...]]
    """Mean prediction at each of `values`, by class; `prediction` if the label has no classes."""


class Explanations(Document):
    """Explanations of the challenger."""

    metric: str
    """Loss that measures the importance."""
    rows: int
    """Holdout rows that were predicted again."""
    columns: tuple[ColumnImportance, ...]
    """All input columns, most important first."""
    dependence: tuple[PartialDependence, ...]
    """The most important columns without blobs."""
