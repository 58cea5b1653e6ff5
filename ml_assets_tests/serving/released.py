"""A home with two registered versions of a declared model, made without a training."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import polars as pl
import yaml

from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.data.tables.declared import NOTHING_DECLARED
from ml_assets.data.tables.publish.publish import publish
from ml_assets.data.tables.spec import Incoming, PublishingRun
from ml_assets.foundation.checkout import ROOT
from ml_assets.model.release.bundle_store import Bundle
from ml_assets.model.release.promotion import register as register_version
from ml_assets.model.release.releases import bundles_of, releases_of
from ml_assets.model.release.rules import deciding_as_json
from ml_assets_tests.release.recorded_evaluations import record_evaluation
from ml_assets_tests.serving.conftest import summing
from ml_assets_tests.tables import orders_table
from resources.ledger import TrainedOn
from resources.platform import Platform
from resources.settings import Settings
from resources.tracking.mlflow_client import open_client

MODEL = "store_demand"
"""A pipeline of `ml_assets/defs`: `promote` and `serve` take declared models only."""


def platform_of(home: Path) -> Platform:
    """Return the platform of a home with embedded parts."""
    return Platform(Settings(home=home))


@cache
def declared_gates() -> str:
    """Return the settings by which the gates of `MODEL` decide, as an evaluation records them."""
    file = ROOT / "ml_assets" / "defs" / MODEL / "defs.yaml"
    for document in yaml.safe_load_all(file.read_text()):
        if document["type"].endswith(".TrainingPipeline"):
            spec = TrainingPipelineSpec.model_validate(document["attributes"])
            return deciding_as_json(spec.rules.evaluation or {})
    raise AssertionError(f"{file} declares no pipeline")


def register(
    platform: Platform,
    rows: pl.DataFrame,
    fingerprint: str,
    model: str = MODEL,
    numeric: Sequence[str] = ("hour", "distance"),
) -> Bundle:
    """Evaluate a bundle against the champion, with the result blessed, and register it."""
    first, *_, last = orders_table.keys(3)
    days = [Incoming(key=key, data=frame) for key, frame in orders_table.days(3).items()]
    run = PublishingRun(run_id="run00001", url="http://127.0.0.1:3000/runs/run00001")
    publish(platform.lake, platform.ledger, orders_table.spec(), days, run, NOTHING_DECLARED)
    commit = platform.lake.resolve("main")
    window = TrainedOn(commit=commit, table=orders_table.ORDERS, first=first, last=last, partitions=3)
    bundle = summing(rows, bundles_of(platform), list(numeric), fingerprint, model=model)
    record_evaluation(platform.ledger, bundle, trained_on=window, gates=declared_gates())
    client = open_client(platform.settings.resolved_tracking_uri.reveal())
    found = client.get_experiment_by_name(model)
    experiment = client.create_experiment(model) if found is None else found.experiment_id
    register_version(
        releases_of(platform), bundle, run_id=client.create_run(experiment).info.run_id, links={}
    )
    return bundle
