"""The readings pipeline as the code location of runs in pods. Its trainings need two pods on node 2."""

import dagster as dg

from ml_assets.assembly import build_defs
from ml_assets.components.base import SpecComponent
from ml_assets_tests.components.installation import Installation, readings_components
from ml_assets_tests.components.readings_pipeline import PIPELINE
from resources.settings import Settings

TRAINERS_NODE = 2
PACE = 0.5
EPOCHS = 40
"""Ten minutes at this pace: an epoch has 30 steps."""


def model_of(settings: Settings) -> str:
    """Return the name of the model. The tracker is shared, so each installation has its own."""
    return f"throughput_{settings.environment.replace('-', '_')}"


def components(settings: Settings) -> list[SpecComponent]:
    """Return the three components."""
    training = {"epochs": EPOCHS, "patience": EPOCHS, "learning_rate": 0.05, "log_every_steps": 1}
    resources = {
        "nodes": 2,
        "cpu": "100m",
        "memory": "2Gi",
        "scratch": "1Gi",
        "node_selector": {"kubernetes.io/hostname": f"node{TRAINERS_NODE}"},
    }
    model = {"function": "ml_assets_tests.cluster.unhurried_model.build", "hyperparameters": {"pace": PACE}}
    return readings_components(
        pipeline={
            "name": model_of(settings),
            "model": model,
            "training": PIPELINE["training"] | training,
            "resources": resources,
        }
    )


def installed(settings: Settings) -> Installation:
    """Return them as an installation with an empty lake."""
    installation = Installation(settings.home, components(settings), settings)
    installation.platform.make_lake_ready()
    return installation


@dg.definitions
def defs() -> dg.Definitions:
    """Return the definitions that the pod of a run loads."""
    settings = Settings()
    return build_defs(settings, components=components(settings))
