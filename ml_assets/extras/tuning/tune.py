"""Study of a model: its window, its identity, its trials, and its result.

Here: the window to search on, all that decides the trials, the course of the study, and its result. Not here: the
training of a trial (`trials`), the choice of values (`tuning.study`), the use of the result (`chosen`), the words of a
difference between studies (`tuning.study`).
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from ml_assets.data.tables.declared import DeclaredTables
from ml_assets.data.tables.guard import BuildRefused
from ml_assets.data.tables.reader import TableReader
from ml_assets.extras.tuning.chosen import REPORT, RESULT, prior_for, store_result
from ml_assets.extras.tuning.prior import Prior
from ml_assets.extras.tuning.study import Study, StudyFacts, is_begun
from ml_assets.extras.tuning.study_report import StudyReport, render, summary_markdown
from ml_assets.extras.tuning.trials import LedPage, SideBySide, Trials
from ml_assets.foundation.links import run_url
from ml_assets.foundation.sections import Section
from ml_assets.model.steps.live_report import StudyPage
from ml_assets.model.steps.search_space import TuningSection, in_words
from ml_assets.model.steps.snapshot import take_snapshot
from ml_assets.model.steps.spec import PipelineSpec
from ml_assets.model.steps.study_metric import StudyMetric, study_metric
from ml_assets.model.steps.study_result import StudyResult, TrialOutcome
from ml_assets.model.steps.values import TrainingSet
from ml_assets.model.steps.window import possible_partitions, require_nothing_rejected_since, validate_inputs
from resources.launcher.protocol import nobody_comes_back
from resources.platform import Platform
from resources.tracking.mlflow_client import TrackerUnavailable, page_of
from resources.tracking.tracker import RunFacts
from resources.words import counted


class NothingToSearchOn(BuildRefused):
    """No partition of the model has rows on main."""


class NoTrialFinished(BuildRefused):
    """Every trial of a study failed."""


@dataclass(frozen=True, kw_only=True)
class StoredStudy:
    """Finished study whose result is stored."""

    report: StudyReport
    folder: str
    """Name of the folder of document and report among the artifacts."""
    address: str
    """Address of that folder."""

    @property
    def summary(self) -> str:
        """Summary of the report in Markdown."""
        return summary_markdown(self.report)

    @property
    def report_file(self) -> str:
        """Address of the report for people."""
        return f"{self.address}/{REPORT}"

    @property
    def document(self) -> str:
        """Address of the document with all numbers."""
        return f"{self.address}/{RESULT}"


def run_study(
    spec: PipelineSpec,
    tuning: TuningSection,
    platform: Platform,
    tables: DeclaredTables,
    page: StudyPage,
    *,
    run_id: str,
    resources: Mapping[str, Any],
    comes_back: Callable[[BaseException], bool] = nobody_comes_back,
) -> StoredStudy:
    """Run the trials that the study on the newest window lacks; store its result and its report.

    Trials train on the training rows of the snapshot and are compared by its validation rows; no trial reads the
    holdout. A study that was stopped continues: same snapshot, space, metric, sampler, declared values and code are the
    same study. `comes_back` is for the launcher. Raises `InputsRefused` for a window that no training may read,
    `NothingToSearchOn`, `NoTrialFinished`, and the launcher's errors that are not of the trial's values.
    """
    partition, keys = _newest_window(spec, platform, tables)
    validated = validate_inputs(spec, platform, tables, partition, keys)
    frozen, _ = take_snapshot(spec, platform, partition, validated, run_id)
    metric = study_metric(tuning, spec.evaluation)
    digest = study_digest(frozen, tuning, metric)
    name = f"{spec.name}-{digest[:12]}"
    study = _open(spec, tuning, platform, frozen, name, metric)
    page.info(f"study {name} on {len(keys)} partitions up to {partition}: {study.most} trials at most")
    if study.differs:
        page.info(f"study {name}: {study.differs}")
    if study.prior.result:
        page.info(
            f"study {name} begins with {counted(len(study.prior.repeated), 'point')} of result "
            f"{study.prior.result[:12]}, and its sampler sees {len(study.prior.seen)} others"
        )
    if study.prior.left_out:
        page.info(f"study {name}: {study.prior.left_out}")
    with platform.tracker.start(_tracking_facts(spec, platform, frozen, digest, tuning)) as tracked:
        parent = ""
        with suppress(TrackerUnavailable):
            parent = tracked.run_id
        side: SideBySide[TrialOutcome] = SideBySide(tuning.parallel_trials)
        led = LedPage(page, side)
        trials = Trials(
            spec=spec,
            platform=platform,
            frozen=frozen,
            digest=digest,
            study=study,
            metric=metric,
            page=led,
            parent=parent,
            run_id=run_id,
            resources=resources,
            budget=tuning.budget,
            warmup=tuning.pruner_warmup,
            comes_back=lambda error: comes_back(side.cause_of(error)),
        )
        side.run(trials.begin, trials.end)
        require_nothing_rejected_since(platform, frozen)
        result = StudyResult(
            study=digest,
            name=name,
            model=spec.name,
            partition=partition,
            snapshot=frozen.job.snapshot_digest,
            window=frozen.trained_on,
            seen=frozen.seen | study.prior.days,
            sampler=tuning.sampler,
            pruner=tuning.pruner,
            trials=tuple(study.outcomes()),
            seconds=study.seconds,
            stopped=_stopped(trials.spent_says(), study),
            differs=study.differs,
            prior=study.prior.result,
            inherited=tuple(study.inherited()),
            metric=metric.name,
            direction=metric.direction,
            measured_by=metric.measured_by,
        )
        if result.stopped:
            page.info(
                f"{result.stopped}. To go on, raise tuning.budget of {spec.name} and launch the study again"
            )
        if not result.finished:
            raise NoTrialFinished(_none_finished(result, tuning))
        best = result.chosen
        values = {} if best.value is None else {f"best_{metric.name}": best.value}
        tracked.log(
            values | {"best_validation_loss": best.validation_loss or 0.0, "best_trial": best.number}, 0
        )
    report = StudyReport(
        result=result,
        space=tuning.space,
        importance=study.importances(),
        lineage=_lineage(platform, result, parent, run_id),
    )
    folder = store_result(platform, result, render(report))
    if parent:
        with suppress(TrackerUnavailable):
            for file in (REPORT, RESULT):
                platform.tracker.attach(parent, platform.artifacts.folder(folder) / file)
    return StoredStudy(report=report, folder=folder, address=platform.artifacts.address(folder))


def _lineage(platform: Platform, result: StudyResult, parent: str, run_id: str) -> dict[str, str]:
    window = result.window
    return {
        "result": result.digest,
        "study": result.study,
        "name in Optuna": result.name,
        "lake commit": platform.lake.commit_url(window.commit) or window.commit,
        "snapshot": result.snapshot,
        "days seen": f"{result.seen}",
        "MLflow run": (page_of(platform.tracker.uri, f"runs/{parent}") or parent) if parent else "–",
        "Dagster run": run_url(platform.settings.ui_url, run_id),
    }


def _open(
    spec: PipelineSpec,
    tuning: TuningSection,
    platform: Platform,
    frozen: TrainingSet,
    name: str,
    metric: StudyMetric,
) -> Study:
    facts = StudyFacts(
        model=spec.name,
        partition=frozen.job.partition,
        snapshot=frozen.job.snapshot_digest,
        decided_by=decided_by(frozen, tuning, metric),
    )
    with platform.ledger.turn("studies"):  # processes that create the tables or the study together would fail
        storage = platform.studies
    # A study that continues has its prior. To look for another one would walk all windows behind it.
    prior = Prior() if is_begun(storage, name) else prior_for(spec, tuning, platform, frozen.keys)
    with platform.ledger.turn("studies"):
        turn = partial(platform.ledger.turn, f"studies/{name}")
        return Study(storage, name, tuning, spec.seed, facts, spec.training.epochs, prior, turn, metric)


def _none_finished(result: StudyResult, tuning: TuningSection) -> str:
    """Return the first failure of a study without a finished trial, and the remedy."""
    first = result.trials[0]
    said = (
        f"none of {counted(len(result.trials), 'trial')} of {result.model} finished. Trial {first.number} "
        f"({in_words(first.parameters)}): {first.why}"
    )
    if result.stopped:
        return f"{said}\nAlso, {result.stopped}: raise tuning.budget of {result.model} and launch the study again"
    if again := sum(one.may_pass for one in result.trials):
        by_loss = result.compared_by.is_validation_loss
        causes = "Resources, room or a store" if by_loss else "The metric, resources, room or a store"
        return (
            f"{said}\n{causes} may be the reason of {counted(again, 'failure')}. Mend it, or give "
            f"other --resources, and launch the study again: it trains "
            f"{'this trial' if again == 1 else 'these trials'} once more"
        )
    more = "" if tuning.sampler == "grid" else ", or raise tuning.trials for other values"
    return f"{said}\nThese values fail at each launch: change tuning.space of {result.model}{more}"


def _stopped(is_spent: str, study: Study) -> str:
    """Return the reason for which a study ended before all its trials; empty if it did not."""
    left = study.most - len(study.outcomes())
    if not is_spent or left <= 0:
        return ""
    return f"{is_spent}, so {left:,} of {counted(study.most, 'trial')} did not begin"


def _newest_window(spec: PipelineSpec, platform: Platform, tables: DeclaredTables) -> tuple[str, list[str]]:
    """Return the newest partition of the model whose rows are on main, and the partitions of its window."""
    table = spec.features.table
    declared = tables.find(table)
    possible = possible_partitions(spec, TableReader.at(platform.lake, "main"), tables)
    if declared is None or not possible:
        raise NothingToSearchOn(
            f"{spec.name}/hyperparameters searches on the newest window, and main holds no partition of {table} from "
            f"{spec.partitions.start} on: materialize {table} first"
        )
    return possible[-1], declared.cadence.window(possible[-1], spec.window.total)


def _tracking_facts(
    spec: PipelineSpec, platform: Platform, frozen: TrainingSet, digest: str, tuning: TuningSection
) -> RunFacts:
    params = {
        "metric": tuning.metric,
        "sampler": tuning.sampler,
        "pruner": tuning.pruner,
        "trials": tuning.trials,
    }
    params |= {f"space.{name}": one.model_dump_json() for name, one in tuning.space.dimensions.items()}
    return RunFacts(
        experiment=spec.name,
        fingerprint=digest,
        name=f"{frozen.job.partition} study",
        author=platform.acting.name,
        params=params,
        tags={
            "partition": frozen.job.partition,
            "snapshot_digest": frozen.job.snapshot_digest,
            "dagster_run": frozen.run_id,
            "dagster_url": run_url(platform.settings.ui_url, frozen.run_id),
        },
        dataset_name=frozen.table,
        dataset_digest=frozen.job.snapshot_digest,
    )


def study_digest(frozen: TrainingSet, tuning: TuningSection, metric: StudyMetric) -> str:
    """Return the SHA-256 of all that decides the trials of a study, except their number."""
    warmup = tuning.pruner_warmup
    facts = {
        "job": frozen.job.fingerprint,
        "space": tuning.space.model_dump(mode="json"),
        "sampler": tuning.sampler,
        "pruner": tuning.pruner,
        "prior": None if tuning.prior is None else tuning.prior.model_dump(mode="json"),
        # Without the defaults, so that studies of a release without these keys continue.
        **({} if metric.is_validation_loss else {"metric": dataclasses.asdict(metric)}),
        **({} if warmup is None else {"pruner_warmup": warmup.model_dump(mode="json")}),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def decided_by(frozen: TrainingSet, tuning: TuningSection, metric: StudyMetric) -> dict[str, str]:
    """Return the parts of `study_digest` for people: name → value."""
    job = dataclasses.asdict(frozen.job) | {"settings": frozen.job.settings.identity}
    parts = {"hyperparameters": "model.hyperparameters.", "settings": "training.", "packages": "package "}
    return {
        **{f"space {name}": _as_written(one) for name, one in tuning.space.dimensions.items()},
        "metric": metric.name,
        **({"metric measured by": metric.measured_by} if metric.measured_by else {}),
        "sampler": tuning.sampler,
        "pruner": tuning.pruner,
        **({} if tuning.pruner_warmup is None else {"pruner_warmup": _as_written(tuning.pruner_warmup)}),
        "prior": "none" if tuning.prior is None else _as_written(tuning.prior),
        **{f"{parts[part]}{name}": f"{value}" for part in parts for name, value in job[part].items()},
        **{
            name: f"{value}"
            for name, value in job.items()
            if name not in (*parts, "snapshot", "platform_text", "restored")
        },
    }


def _as_written(section: Section) -> str:
    """Return a section as a file has it: `{kind: int, low: 8, high: 128}`."""
    return section.model_dump_json(exclude_unset=True).replace('"', "").replace(":", ": ").replace(",", ", ")
