"""Predictions that an objective allows: finite, and in its range."""

import numpy as np

from ml_assets.foundation.objective_facts import ROUNDED, Link, ObjectiveName, facts_of
from ml_assets.model.evaluation.metrics import Vector

_SUM_ROUNDED = 1e-4
"""Largest distance of a sum of probabilities from 1: a bundle computes them in float32."""
_WORDS: dict[Link, str] = {
    "sigmoid": "probabilities",
    "identity": "numbers",
    "exp": "counts of at least 0",
    "softmax": "probabilities that add up to 1 in each row",
    "token log_softmax": "nats per token of at least 0 and shares",
}


def prediction_fault(p: Vector, objective: ObjectiveName) -> str:
    """Return the reason for which `p`, `[N]` or `[N, K]`, cannot be predictions, as a clause; empty if they can be."""
    if wrong := int((~np.isfinite(p)).sum()):
        return f"are not finite in {wrong} of {p.size} places"
    facts = facts_of(objective)
    low, high = facts.prediction_range
    adds_up = not facts.has_classes or np.abs(p.sum(axis=1) - 1).max() <= _SUM_ROUNDED
    if p.min() < low - ROUNDED or p.max() > high + ROUNDED or not adds_up:
        # The figures of a text come from the bundle's graph, so there is no raw output to mend.
        advice = "" if facts.has_tokens else f" (raw output? apply the {facts.link})"
        return f"must be {_WORDS[facts.link]}; they run from {p.min():.4g} to {p.max():.4g}{advice}"
    return ""


def in_range(p: Vector, objective: ObjectiveName) -> Vector:
    """Return `p` with values that rounding moved out of the range at its end."""
    return np.clip(p, *facts_of(objective).prediction_range)
