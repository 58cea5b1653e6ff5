"""Step 5: register a model that the gates did not reject, and keep its input as long as the version exists."""

from ml_assets.data.snapshots.keep import version_branch
from ml_assets.foundation.links import report_name, run_url
from ml_assets.model.release.mlflow_view import show
from ml_assets.model.release.promotion import register
from ml_assets.model.release.registry import RegisteredVersion
from ml_assets.model.release.releases import releases_of
from ml_assets.model.release.reviews import waits_for_approval
from ml_assets.model.release.standing import InputsRejected
from ml_assets.model.steps.spec import PipelineSpec
from ml_assets.model.steps.values import EvaluatedModel, RegisteredModel, TrainedModel, TrainingSet
from ml_assets.model.steps.window import rejected_since
from resources.ledger import DossierRow
from resources.platform import Platform


def register_model(
    spec: PipelineSpec,
    platform: Platform,
    training_set: TrainingSet,
    trained: TrainedModel,
    evaluated: EvaluatedModel,
) -> RegisteredModel | None:
    """Return the registered version; None if a gate rejected the model.

    Raises `InputsRefused` if a partition of its window was rejected since; it names the partition.
    """
    releases = releases_of(platform)
    if evaluated.status == "rejected":
        # An earlier evaluation's version may now be rejected: update it.
        show(releases.registry, releases.log, spec.name)
        for one in releases.registry.versions(spec.name):
            if one.bundle_digest == evaluated.bundle:  # its newest evaluation read this input
                _keep_input(platform, one, training_set)
        return None
    bundle = releases.store.open(evaluated.bundle)
    links = {
        "partition": training_set.job.partition,
        "lake_commit": training_set.commit,
        "dagster_run": training_set.run_id,
        "dagster_url": run_url(platform.settings.ui_url, training_set.run_id),
    }
    try:
        version = register(releases, bundle, run_id=trained.mlflow_run, links=links, rules=spec.rules)
    except InputsRejected as error:
        raise rejected_since(training_set, error.refused, is_trained=True) from error
    kept = _keep_input(platform, version, training_set)
    dossier = _dossier(platform, version)
    standing = releases.standings(spec.name).of(bundle.digest)
    shown = standing.shown
    return RegisteredModel(
        number=version.number,
        semantic=version.semantic,
        bundle=bundle.digest,
        branch=kept,
        may_be_promoted=standing.may_be_promoted,
        waits_for_approval=waits_for_approval(releases, standing, spec.rules),
        is_in_production=standing.is_in_production,
        was_promoted=standing.promotion is not None,
        gate=shown.status if shown else "",
        evaluation=shown.name if shown else "",
        report=report_name(shown.model, shown.partition, shown.evaluation_digest) if shown else "",
        report_file=shown.report if shown else "",
        dossier="" if dossier is None else dossier.dossier_digest,
        dossier_files=_files_of(platform, dossier),
    )


def _files_of(platform: Platform, dossier: DossierRow | None) -> str:
    if dossier is None:
        return ""
    from ml_assets.extras.governance.dossier.stored import dossier_address

    return dossier_address(platform.artifacts, dossier)


def _keep_input(platform: Platform, version: RegisteredVersion, training_set: TrainingSet) -> str:
    """Keep the input of this run as long as the version exists, beside those of earlier runs; return the branch."""
    kept = version_branch(version.model, version.number, version.bundle_digest, training_set.source_commit)
    # The version's own branch first: its input must always be on a branch.
    platform.lake.keep(kept, training_set.commit)
    platform.lake.release(training_set.branch)
    return kept


def _dossier(platform: Platform, version: RegisteredVersion) -> DossierRow | None:
    """Return the dossier of the newest evaluation, signed with the key of the settings; None without a key.

    Writes it unless it exists, such as when this step is repeated.
    """
    if platform.settings.signing_key is None:
        return None
    from ml_assets.extras.governance.dossier.signature import SigningKey
    from ml_assets.extras.governance.dossier.stored import write_dossier

    key, log = SigningKey.read(platform.settings.signing_key), platform.ledger.models
    newest = log.newest_evaluation(version.model, version.bundle_digest)
    for row in reversed(log.dossiers(version.model)):
        of_newest = newest is not None and row.evaluation_digest == newest.evaluation_digest
        if of_newest and row.signed_by == key.public.name:
            return row
    return write_dossier(platform, version, key)
