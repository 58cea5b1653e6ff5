"""Results of a model's studies, and what its next training and its next study take from them.

Here: where results are stored, and when a result counts. Not here: running a study (`tune`).
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ml_assets.data.tables.guard import InputsRefused
from ml_assets.extras.tuning.prior import Prior, windows_of
from ml_assets.foundation.days import Days
from ml_assets.foundation.links import STUDIES
from ml_assets.model.release import standing
from ml_assets.model.steps.search_space import TuningSection, in_words
from ml_assets.model.steps.snapshot import Chosen
from ml_assets.model.steps.spec import PipelineSpec
from ml_assets.model.steps.study_metric import study_metric
from ml_assets.model.steps.study_result import StudyResult
from ml_assets.model.steps.window import rejected_behind
from resources.files import write_whole
from resources.ledger import TrainedOn
from resources.platform import Platform
from resources.words import counted

RESULT, REPORT = "study.json", "report.html"
"""Files of a result in its folder among the artifacts: the document, and its report for people."""
_RESULTS = "results.json"
"""List of the results of a model, in the order in which their studies were launched last."""


_AGAIN = "Restore both from a copy, or delete them and search again: ml-assets launch {}/hyperparameters"


class StudyChanged(Exception):
    """A stored result of a study is not the one that its list names."""


@dataclass(frozen=True, kw_only=True)
class KnownResult:
    """Entry of a result in the list of its model's results."""

    name: str
    """First 12 hex digits of its digest: the name of its folder."""
    partition: str
    """Partition on whose window the study searched."""
    seen: Days

    def __str__(self) -> str:
        """Return the result for people."""
        return f"study {self.name} of {self.partition}"


def store_result(platform: Platform, result: StudyResult, report: str) -> str:
    """Store a result under its digest with its `report` (HTML), and as the newest of its model's results.

    Return the name of its folder among the artifacts.
    """
    name = _folder(platform, result.model, result.digest[:12])
    write_whole(platform.artifacts.folder(name) / REPORT, lambda path: path.write_text(report, "utf-8"))
    write_whole(platform.artifacts.folder(name) / RESULT, lambda path: path.write_text(result.to_json()))
    platform.artifacts.push(name, last=RESULT)
    new = KnownResult(name=result.digest[:12], partition=result.partition, seen=result.seen)
    with platform.ledger.turn(f"studies/{result.model}"):  # two studies may end at once
        others = [one for one in results_of(platform, result.model) if one.name != new.name]
        entries = [asdict(one) for one in (*others[::-1], new)]
        folder = _folder(platform, result.model)
        write_whole(
            platform.artifacts.folder(folder) / _RESULTS,
            lambda path: path.write_text(json.dumps(entries, indent=1)),
        )
        platform.artifacts.push(folder, [_RESULTS])
    return name


def results_of(platform: Platform, model: str) -> list[KnownResult]:
    """Return the results of a model's studies, the newest first."""
    folder = _folder(platform, model)
    if not platform.artifacts.exists(folder, _RESULTS):
        return []
    entries = json.loads((platform.artifacts.pull(folder, [_RESULTS]) / _RESULTS).read_text())
    return [
        KnownResult(name=one["name"], partition=one["partition"], seen=Days.from_document(one["seen"]))
        for one in reversed(entries)
    ]


def stored_result(platform: Platform, model: str, digest: str) -> StudyResult:
    """Return the result of a study by its digest. Raises `StudyChanged` if it is gone or was changed."""
    for one in results_of(platform, model):
        if one.name == digest[:12]:
            return _read(platform, model, one)
    raise StudyChanged(f"the result {digest[:12]} of a study is gone. {_AGAIN.format(model)}")


def chosen_for(spec: PipelineSpec, platform: Platform, window: Sequence[str]) -> Chosen | None:
    """Return the values of a training of `spec` on the partitions `window`; None if it declares no study.

    A study counts only if all days that it has seen lie before the holdout: a model of a past day must not owe its
    values to rows that measure it, or to its future. Of those the newest counts, as long as its values are a point of
    the declared space: after a change of the space the declared values count again, until the next study.
    """
    if spec.tuning is None:
        return None
    search = f"ml-assets launch {spec.name}/hyperparameters"
    holdout = spec.holdout_of(window)
    usable, later = _split_at(holdout, results_of(platform, spec.name))
    if usable is None and not later:
        return Chosen(result=None, says=f"no study yet, so the declared values are used. To search: {search}")
    if usable is None:
        return Chosen(
            result=None,
            says=f"the declared values are used: no study saw only days before the holdout ({holdout}), {later[0]} has "
            f"seen {later[0].seen}",
        )
    result, name = _read(platform, spec.name, usable), f"{usable}"
    if not spec.tuning.space.holds(result.chosen.parameters):
        return Chosen(
            result=None,
            says=f"{name} chose {in_words(result.chosen.parameters)}, which is not in the declared space any more, so "
            f"the declared values are used. To search again: {search}",
        )
    newer = counted(len(later), "newer result")
    saw = f". Not used: {newer} that saw days of the holdout ({holdout}) or later" if later else ""
    return Chosen(result=result, says=f"{name}: {result.because}{saw}")


def _split_at(
    holdout: Days, results: Sequence[KnownResult]
) -> tuple[KnownResult | None, Sequence[KnownResult]]:
    """Return the first of `results` that saw only days before `holdout`, and those in front of it."""
    for place, one in enumerate(results):
        if not one.seen.reaches(holdout):
            return one, results[:place]
    return None, results


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


def prior_for(spec: PipelineSpec, tuning: TuningSection, platform: Platform, window: Sequence[str]) -> Prior:
    """Return the points of earlier studies with which a new study of `spec` on the partitions `window` begins.

    They come from the newest study that saw only days before the holdout. Points of another one would bring what they
    learned from the holdout into the choice. Points by another metric are left out, and points whose window now holds a
    rejected partition, at any depth, or is no longer in the lake.
    """

    usable, _ = _split_at(spec.holdout_of(window), results_of(platform, spec.name))
    result = None if usable is None else _read(platform, spec.name, usable)
    refused: dict[TrainedOn, str] = {}
    for behind in windows_of(result) if result and tuning.prior else []:
        try:
            why = standing.in_words(rejected_behind(platform, behind))
        except standing.InputsUnknown as error:
            why = f"{error}"
        if why:
            refused[behind] = why
    return Prior.of(result, tuning.space, tuning.prior, refused, study_metric(tuning, spec.evaluation))


def _read(platform: Platform, model: str, one: KnownResult) -> StudyResult:
    file = platform.artifacts.pull(_folder(platform, model, one.name), [RESULT]) / RESULT
    try:
        result = StudyResult.from_json(file.read_text())
    except (ValueError, KeyError, TypeError) as error:
        raise StudyChanged(f"{file} cannot be read as a result ({error}): {_AGAIN.format(model)}") from error
    if result.digest[:12] != one.name or (result.partition, result.seen) != (one.partition, one.seen):
        raise StudyChanged(
            f"{file} is not the result of {one} that has seen {one.seen}: it, or {_RESULTS} beside its folder, was "
            f"changed. {_AGAIN.format(model)}"
        )
    return result


def _folder(platform: Platform, model: str, *name: str) -> str:
    # By environment: a study of staging must not choose for production, even if both share a bucket.
    return "/".join((STUDIES, platform.settings.namespace, model, *name))
