"""Blend: several models of a script, handed in as one whose prediction is their weighted mean.

Here: the models and their weights, which the script chooses on its validation rows. Not here: the graph (matrix_graph).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from resources.job.errors import BadConfiguration


@dataclass(frozen=True)
class Blend:
    """Weighted mean of the predictions of `models`, such as trees and a network. `Training.finish` takes it.

    A model is whatever `finish` takes alone. Raises `BadConfiguration` unless each model has a weight, none is negative
    and they add up to 1.
    """

    models: Sequence[object]
    weights: Sequence[float]

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "models", tuple(self.models))
            object.__setattr__(self, "weights", tuple(float(weight) for weight in self.weights))
        except (TypeError, ValueError) as error:
            raise BadConfiguration(
                f"a blend takes a list of models and a list of numbers as their weights: {error}"
            ) from error
        if not self.models or len(self.models) != len(self.weights):
            raise BadConfiguration(
                f"a blend of {len(self.models)} models has {len(self.weights)} weights: give each model one"
            )
        if min(self.weights) < 0 or not math.isclose(math.fsum(self.weights), 1, abs_tol=1e-6):
            said = ", ".join(f"{weight:g}" for weight in self.weights)
            raise BadConfiguration(
                f"the weights of a blend are {said}: none may be negative, and their sum must be 1"
            )
