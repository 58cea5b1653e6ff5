"""Question that a model answers: two models are comparable if they answer the same one."""

from dataclasses import dataclass

from ml_assets.foundation.objective_facts import facts_of


@dataclass(frozen=True, kw_only=True)
class Question:
    """Label, objective, classes and tokens."""

    label: str
    """Column that the model predicts."""
    objective: str
    classes: tuple[str, ...] = ()
    """Classes of the label, in the order of a prediction; empty if labels are numbers."""
    tokens: str = ""
    """Identity of the tokens that a text is read as; empty if rows are not texts. A loss per token can be compared only
    on equal tokens."""

    def other_than(self, asked: "Question") -> str:
        """Return the first difference from the question `asked`, as a clause; empty if they are the same."""
        if self.label != asked.label:
            return f"its label is {self.label}, that of this comparison is {asked.label}"
        if facts_of(self.objective).trained_as != facts_of(asked.objective).trained_as:
            return f"its objective is {self.objective}, that of this comparison is {asked.objective}"
        if self.classes != asked.classes:
            mine, others = (", ".join(one.classes) or "none" for one in (self, asked))
            return f"its classes are {mine}; those of this comparison are {others}"
        if self.tokens != asked.tokens:
            return (
                f"it reads texts as other tokens ({self.tokens or 'none'}) than this comparison "
                f"({asked.tokens or 'none'}), so losses per token mean different things"
            )
        return ""
