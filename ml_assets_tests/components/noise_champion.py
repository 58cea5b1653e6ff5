"""A model as good as noise, to be the champion of a test."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ml_assets.data.features.encoding import FittedState
from ml_assets.data.snapshots.split_reader import FITTED, open_snapshot
from ml_assets.model.release.bundle import BundleContents, build_bundle
from ml_assets.model.release.bundle_store import Bundle
from ml_assets.model.release.releases import bundles_of
from ml_assets.model.training.step.load import load_model
from ml_assets_tests.components.installation import Installation
from ml_assets_tests.components.readings_pipeline import FEATURES, MODEL
from resources.job.job import TrainingJob, TrainingResult


def randomize_weights(
    installation: Installation,
    bundle_digest: str,
    day: str,
    renamed: Mapping[str, str] | None = None,
    classes: Sequence[str] = (),
) -> Bundle:
    """The bundle made again, from weights that learned nothing.

    It reads `renamed` columns under another name. If its label has classes, they are called `classes`.
    """
    import torch

    facts = bundles_of(installation.platform).open(bundle_digest).facts
    lineage = facts.lineage
    folder = installation.settings.artifacts_folder / "training" / MODEL / lineage.fingerprint[:16]
    job = TrainingJob.from_json((folder / "job.json").read_text())
    snapshot = open_snapshot(Path(job.snapshot), job.snapshot_digest)
    module = load_model(job, snapshot.inputs, Path(TrainingResult.read(folder / "result.json").weights))
    torch.manual_seed(3)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(10 * torch.randn_like(weight))
    names = renamed or {}
    fitted = FittedState.from_json((snapshot.folder / FITTED).read_text())
    contents = BundleContents(
        module=module,
        fitted=replace(
            fitted,
            numeric=tuple(replace(one, name=names.get(one.name, one.name)) for one in fitted.numeric),
            classes=tuple(classes),
        ),
        objective=facts.objective,
        rows=installation.main.scan(FEATURES, [day]).collect().rename(names),
        lineage=replace(lineage, weights_sha256="0" * 64),
    )
    return build_bundle(contents, bundles_of(installation.platform))
