"""A made-up holdout: days that are all easy or all hard, three models of different quality."""

from dataclasses import dataclass
from datetime import date, timedelta

import numpy as np
import polars as pl

from ml_assets.model.evaluation.metrics.metrics import Vector
from ml_assets.model.evaluation.report_document import CardSection, ModelFacts


@dataclass(frozen=True)
class HoldoutCase:
    """A holdout and the predictions of its models."""

    holdout: pl.DataFrame
    challenger: Vector
    champion: Vector
    baseline: Vector
    reference: Vector

    def predictions(self, *, champion: bool = True) -> dict[str, Vector]:
        """Return the predictions by role, as `evaluate` takes them."""
        some = {"challenger": self.challenger, "baseline": self.baseline, "reference": self.reference}
        return some | ({"champion": self.champion} if champion else {})


def model_facts(**words: object) -> ModelFacts:
    """Return facts of a made-up model; `words` are keys of its section `card`."""
    return ModelFacts(
        description="Probability that a flight is late.",
        card=CardSection.model_validate(words),
        table="features/flight_departures",
        label="late",
        inputs={"numeric": ("dep_hour", "wind"), "category": ("origin",)},
        made_by="flights.model.build",
        hyperparameters={"hidden": [128, 64]},
        training={"epochs": 4, "parallel": {"shard": "none"}},
        seed=1,
    )


def sigmoid(logits: Vector) -> Vector:
    """Logits to probabilities."""
    return 1 / (1 + np.exp(-logits))


def make_holdout(days: int = 40, rows_a_day: int = 60, seed: int = 0) -> HoldoutCase:
    """Binary labels that share the day's difficulty; the challenger knows more of it than the champion."""
    random = np.random.default_rng(seed)
    day = np.repeat(np.arange(days), rows_a_day)
    rows = len(day)
    hardness = random.normal(0, 0.8, days)[day]
    known = random.normal(0, 1, rows)
    label = (random.random(rows) < sigmoid(-1.4 + 0.8 * known + hardness)).astype(np.float64)
    holdout = pl.DataFrame(
        {
            "date": [date(2013, 11, 1) + timedelta(days=int(one)) for one in day],
            "origin": random.choice(["EWR", "JFK", "LGA"], rows),
            "carrier": random.choice(["AA", "UA", "HA"], rows, p=[0.5, 0.49, 0.01]),
            "label": label,
        }
    )
    return HoldoutCase(
        holdout,
        challenger=sigmoid(-1.35 + 0.8 * known + 0.5 * hardness),
        champion=sigmoid(-1.35 + 0.5 * known + random.normal(0, 0.4, rows)),
        baseline=np.full(rows, 0.25),
        reference=sigmoid(-1.3 + 0.3 * known),
    )
