"""Errors of an evaluation. Each message names the remedy. A rejection is not an error."""


class EvaluationInputError(ValueError):
    """The holdout or the predictions cannot be evaluated: wrong shape, no label, no rows."""


class UnknownMetric(ValueError):
    """A metric that the objective does not have."""
