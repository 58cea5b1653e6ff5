"""Words of a team about its model: the `card` section of a pipeline. Figures come from the evaluation."""

from ml_assets.foundation.sections import Section


class CardSection(Section):
    """Intended use and known limits of a model, for its model card. Not part of the fingerprint."""

    intended_use: str = ""
    """Decisions or products that the model is made for, and the people who use it."""
    not_intended_for: tuple[str, ...] = ()
    """Uses that look near and are wrong, one sentence each."""
    limits: tuple[str, ...] = ()
    """Known limits, one sentence each. The card adds those that the evaluation measured."""
    contact: str = ""
    """Team or address for questions about the model."""
