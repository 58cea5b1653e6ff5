"""Newest result of a model's study, and what its next training and its next study take from it.

Here: where results are stored, and when a result counts. Not here: running a study (`tune`).
"""

from dataclasses import dataclass

from ml_assets.pipeline.links import STUDIES
from ml_assets.pipeline.spec import PipelineSpec
from ml_assets.pipeline.window import rejected_behind
from ml_assets.tables.refusal import InputsRefused
from ml_assets.tuning.choice import Choice, in_words
from ml_assets.tuning.prior import Prior, windows_of
from ml_assets.tuning.spec import TuningSection
from ml_assets.tuning.study_result import StudyResult
from resources.files import write_whole
from resources.ledger import TrainedOn
from resources.platform import Platform

RESULT, REPORT = "study.json", "report.html"
"""Files of a result in its folder among the artifacts: the document, and its report for people."""


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Values of a model's next training."""

    result: StudyResult | None
    """Result that counts; None if the declared values are used."""
    says: str
    """The values and their origin, or the reason why no result counts, in one sentence."""

    @property
    def choice(self) -> Choice | None:
        """Values in place of the declared ones; None: the declared ones."""
        return None if self.result is None else self.result.choice


def store_result(platform: Platform, result: StudyResult, report: str) -> str:
    """Store a result under its digest with its `report` (HTML), and as the newest of its model.

    Return the name of its folder among the artifacts.
    """
    name = _folder(platform, result.model, result.digest[:12])
    write_whole(platform.artifacts.folder(name) / REPORT, lambda path: path.write_text(report, "utf-8"))
    # The document under its digest comes first: what the newest names must exist.
    for folder in (name, _newest(platform, result.model)):
        write_whole(
            platform.artifacts.folder(folder) / RESULT, lambda path: path.write_text(result.to_json())
        )
        platform.artifacts.push(folder, last=RESULT)
    return name


def chosen_for(spec: PipelineSpec, platform: Platform) -> Chosen | None:
    """Return the values of the next training of `spec`; None if it declares no study.

    A result counts as long as its values are a point of the declared space: after a change of the space the declared
    values count again, until the next study.
    """
    if spec.tuning is None:
        return None
    search = f"ml-assets launch {spec.name}/hyperparameters"
    result = newest_result(platform, spec.name)
    if result is None:
        return Chosen(result=None, says=f"no study yet, so the declared values are used. To search: {search}")
    name = f"study {result.digest[:12]} of {result.partition}"
    if not spec.tuning.space.holds(result.chosen.parameters):
        return Chosen(
            result=None,
            says=f"{name} chose {in_words(result.chosen.parameters)}, which is not in the declared space any more, so "
            f"the declared values are used. To search again: {search}",
        )
    return Chosen(result=result, says=f"{name}: {result.because}")


def require_chosen_on_valid_rows(spec: PipelineSpec, platform: Platform, chosen: Chosen) -> None:
    """Raise `InputsRefused` if the window of the study now holds a rejected partition, at any depth."""
    result = chosen.result
    if result is None:
        return
    if refused := rejected_behind(platform, result.window):
        raise InputsRefused(
            f"{spec.name} with the hyperparameters of study {result.digest[:12]}",
            refused,
            more=f" Or search again, on a window without it: ml-assets launch {spec.name}/hyperparameters",
        )


def prior_for(spec: PipelineSpec, tuning: TuningSection, platform: Platform) -> Prior:
    """Return the points of earlier studies with which a new study of `spec` begins.

    Points whose window now holds a rejected partition, at any depth, or is no longer in the lake are left out.
    """
    from ml_assets.release import rows_behind

    result = newest_result(platform, spec.name)
    refused: dict[TrainedOn, str] = {}
    for window in windows_of(result) if result and tuning.prior else []:
        try:
            why = rows_behind.in_words(rejected_behind(platform, window))
        except rows_behind.InputsUnknown as error:
            why = f"{error}"
        if why:
            refused[window] = why
    return Prior.of(result, tuning.space, tuning.prior, refused)


def newest_result(platform: Platform, model: str) -> StudyResult | None:
    """Return the result of the model's newest study; None if there is none yet."""
    artifacts, name = platform.artifacts, _newest(platform, model)
    if not artifacts.exists(name, RESULT):
        return None
    return StudyResult.from_json((artifacts.pull(name, [RESULT]) / RESULT).read_text())


def _newest(platform: Platform, model: str) -> str:
    return _folder(platform, model, "newest")


def _folder(platform: Platform, model: str, name: str) -> str:
    # By environment: a study of staging must not choose for production, even if both share a bucket.
    return f"{STUDIES}/{platform.settings.namespace}/{model}/{name}"
