"""The shipped pipeline `store_demand`, cut short, in an installation of a test's own.

Here: what differs from its `defs.yaml`, and the commands a person would give one after the other. Not here:
the points where the process is killed (`kill_points`), what must stand afterwards (`pipeline_facts`).
"""

from collections.abc import Callable, Mapping
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

import dagster as dg
import yaml

from ml_assets import components
from ml_assets.components.metadata import declared_tables
from ml_assets.components.training_pipeline import STAGES
from ml_assets.context.launch import materialize
from ml_assets.context.project import Project
from ml_assets.data.tables.cadence import Cadence
from ml_assets.foundation.checkout import ROOT
from ml_assets_tests.prepared_home import prepare_home
from resources.settings import Settings

SALES, FEATURES, MODEL = "datasets/sales", "features/sales_features", "store_demand"
WEEK = "2024-01-01"
"""The model's partition."""
WINDOW = {"train": 6, "validation": 2, "holdout": 5}
LOOKBACK = 4
EPOCHS = 6
STEPS = 9 * EPOCHS
"""Steps of a training: 72 rows a week, in batches of 48."""

_WEEKS = Cadence("weekly", date(2023, 1, 2)).window(WEEK, sum(WINDOW.values()) + LOOKBACK)
WEEKS = {SALES: _WEEKS, FEATURES: _WEEKS[LOOKBACK:]}
"""Table → its partitions, as far as the model's window reaches."""

_CHANGES: Mapping[str, Mapping[str, Any]] = {
    "window": WINDOW,
    "model": {
        "function": "ml_assets_tests.faults.slow_demand_model.build",
        "hyperparameters": {"hidden": 8, "pace": 0.005},
    },
    "training": {
        "epochs": EPOCHS,
        "patience": EPOCHS,
        "global_batch": 48,
        "learning_rate": 0.05,
        "log_every_steps": 3,
        "device": "cpu",
        "checkpoint_every_steps": 4,
    },
    "evaluation": {"draws": 100},
}
"""Section of the model's `defs.yaml` → what is otherwise here."""


class DemandProject(Project):
    """A home with this pipeline alone."""

    @classmethod
    def at(cls, home: Path) -> "DemandProject":
        """Return the project in `home`. Unlike a command, read no environment variable."""
        settings = Settings(home=home, author="ada")
        prepare_home(settings)
        return cls(settings)

    @cached_property
    def defs(self) -> dg.Definitions:
        """Assemble the definitions like `ml_assets.assembly` does."""
        # No component asks its load context.
        parts = dg.Definitions.merge(*(one.build_defs(None) for one in _declared()))
        resources = {"platform": self.platform, "tables": declared_tables(parts)}
        own: Any = {"resources": resources, "executor": dg.in_process_executor}
        return dg.Definitions.merge(parts, dg.Definitions(**own))

    def defs_of(self, *assets: str) -> dg.Definitions:
        """Return all definitions: those of the defs folder differ."""
        return self.defs

    def launch(self, table: str, first: str, last: str) -> None:
        """`ml-assets launch <table> <first>..<last>`."""
        materialize(self, [key_of(table)], partition=first, last=last)

    def run_all(self, begin: Callable[[str], None] = lambda _: None) -> None:
        """The whole way, each command again whatever was finished; `begin` is told the names of commands."""
        for table, weeks in WEEKS.items():
            begin(table)
            self.launch(table, weeks[0], weeks[-1])
        begin(MODEL)
        materialize(self, [dg.AssetKey([MODEL, stage]) for stage in STAGES], partition=WEEK)


def key_of(table: str) -> dg.AssetKey:
    """`a/b` as a key."""
    return dg.AssetKey(table.split("/"))


def _declared() -> list[Any]:
    file = ROOT / "ml_assets" / "defs" / MODEL / "defs.yaml"
    found = []
    for document in yaml.safe_load_all(file.read_text()):
        of_type = getattr(components, document["type"].rpartition(".")[2])
        attributes = document["attributes"]
        if attributes["name"] == MODEL:
            attributes |= {name: attributes[name] | change for name, change in _CHANGES.items()}
        found.append(of_type(of_type.spec_type.model_validate(attributes)))
    return found
