"""Facts of a version for `ml-assets diff`: a bundle and its report give the same."""

from collections.abc import Callable

from ml_assets.model.evaluation.comparison.gates import Champion
from ml_assets.model.release.bundle_store import Bundle
from ml_assets.pages.version_difference import KnownFacts
from ml_assets_tests.evaluation.holdout_case import make_holdout
from ml_assets_tests.evaluation.test_report import make_report


def test_a_report_knows_the_settings_of_its_bundle(variant: Callable[..., Bundle]) -> None:
    """Otherwise a lost bundle would look like changed settings."""
    made = make_report(make_holdout(), Champion("version 7"))
    model = made.model.model_copy(update={"weight": "margin"})
    lineage = {**made.lineage, "code of the model": "c" * 64, "weights": "e" * 64}
    report = made.model_copy(update={"model": model, "lineage": lineage})
    of_bundle = KnownFacts.of_bundle(
        variant(
            configuration={
                "hyperparameters": model.hyperparameters,
                "training": model.training,
                "seed": model.seed,
                "weight": "margin",
                "decode": "a.b.decode",
                "init_from": "small/1",
            }
        )
    )
    assert of_bundle.settings.keys() - of_bundle.in_reports.keys() == {"decode", "init_from"}
    assert of_bundle.in_reports == KnownFacts.of_report(report).in_reports
    assert of_bundle.in_reports["weight"] == "margin"
