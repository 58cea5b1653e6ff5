"""Errors of an evaluation, as types whose message says what to do. A rejection is not an error."""


class EvaluationInputError(ValueError):
    """The holdout or the predictions cannot be evaluated: wrong shape, no label, no rows."""


class UnknownMetric(ValueError):
    """A metric that the objective does not have."""
