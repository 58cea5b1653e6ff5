"""Work of `ml-assets launch`: the partitions that a person types, the run, and its summary.

Not here: the run itself (`runs`).
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import dagster as dg

from ml_assets.cli.project import Project
from ml_assets.cli.runs import materialize
from ml_assets.cli.terminal import Problem, progress, say
from ml_assets.components.assets.hyperparameters import HYPERPARAMETERS
from ml_assets.components.assets.predictions import LIVE
from ml_assets.components.feature_table import is_online
from ml_assets.components.metadata import RESOURCES, is_table
from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.components.training_pipeline import STAGES, stage_key
from ml_assets.data.tables.cadence import begin_of_key
from ml_assets.model.steps.spec import PREDICTIONS
from resources.launcher.resource_profile import changes_of
from resources.words import counted, did_you_mean

SHOWN = ("verdict", "chosen because", "decision", "auc", "logloss", "rmse", "version", "gate", "next")
"""Metadata of a materialization that a terminal shows."""


def launch(target: str, partitions: str | None, resources: str | None) -> None:
    """Materialize `target` for `partitions`, both as typed; print the summary of the run."""
    project = Project.here()
    spec = _model_named(project, target, partitions)
    is_study = spec is not None and target == f"{spec.name}/{HYPERPARAMETERS}"
    if spec is None or is_study:
        if resources is not None and spec is None:
            raise Problem(
                f"--resources is for a model's workers, and {target} is a table: leave the option out"
            )
        keys = [dg.AssetKey(target.split("/"))]
    else:
        keys = [stage_key(spec, stage) for stage in STAGES]
    if spec is not None:
        # Refuse wrong resources now, not after the snapshot.
        spec.resources.of("" if is_study else partitions or "", changes_of(resources or ""))
    first, last = typed_range(
        target, project.defs.resolve_asset_graph().get(keys[0]).partitions_def, partitions
    )
    if last is not None and len(keys) > 1:
        raise Problem(f"a launch trains a model for one partition: ml-assets launch {target} {last}")
    tags = {RESOURCES: resources} if resources is not None else {}
    with progress().status(f"{target} {partitions or ''}") as status:
        finished = materialize(
            project,
            keys,
            partition=first,
            last=last,
            tags=tags,
            on_progress=lambda text: status.update(f"{target}: {text}"),
        )
    made = counted(finished.materialized, "materialization")
    say(f"{' '.join(filter(None, (target, partitions)))}: {made} in {finished.seconds:.1f} s")
    for key, facts in finished.metadata.items():
        shown = [f"{name} {_short(facts[name])}{_beside(facts, name)}" for name in SHOWN if name in facts]
        if shown:
            say(f"  {key.to_user_string()}: {', '.join(shown)}")
    for key, text in finished.observed.items():
        say(f"  {key.to_user_string()}: {text}")
    for report in {one["report_file"]: None for one in finished.metadata.values() if "report_file" in one}:
        say(f"  report {report}")
    say(f"  run {project.settings.ui_url}/runs/{finished.run_id}")


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _beside(facts: Mapping[str, Any], name: str) -> str:
    """Return a metric's values for the naive baseline and for the regression on the same columns; empty if unknown."""
    said = {"naive": facts.get(f"baseline_{name}"), "regression": facts.get(f"reference_{name}")}
    known = [f"{model} {_short(value)}" for model, value in said.items() if value is not None]
    return f" ({', '.join(known)})" if known else ""


def _model_named(project: Project, target: str, partitions: str | None) -> TrainingPipelineSpec | None:
    """Return the spec of the model that `target` names, itself or its study; None if it names a table.

    Raises `Problem` for anything else.

    A name without a slash is first looked up as a model, although tables of the same folder often share it.
    """
    models = project.pipelines()
    if target in models:
        return models[target]
    keys = project.defs.resolve_asset_graph().get_all_asset_keys()
    tables = sorted(key.to_user_string() for key in keys if is_table(key) or is_online(key))
    if target in tables:
        return None
    first, _, rest = target.partition("/")
    if first in models and rest == HYPERPARAMETERS:
        if models[first].tuning is None:
            raise Problem(
                f"{first} declares no study: add `tuning` to its defs.yaml, with `space` and `trials`"
            )
        return models[first]
    if first in models and rest in (PREDICTIONS, LIVE):
        if models[first].scoring is not None:
            return None
        raise Problem(f"{first} declares no batch scoring: add `scoring: {{}}` to its defs.yaml")
    if first in models and rest in STAGES:
        raise Problem(
            f"{target} materializes only together with the model's other assets: ml-assets launch {first} "
            f"{partitions or 'PARTITION'}"
        )
    if same := [table for table in tables if table.partition("/")[2] == target]:
        raise Problem(
            f"'{target}' is a table: give its folder, too: "
            f"{' or '.join(f'ml-assets launch {one} PARTITIONS' for one in same)}"
        )
    studies = [f"{name}/{HYPERPARAMETERS}" for name, one in models.items() if one.tuning is not None]
    names = [*sorted([*models, *studies]), *tables]
    raise Problem(f"no model or table is named '{target}'{did_you_mean(target, names)}")


def typed_range(
    name: str, partitions: dg.PartitionsDefinition | None, typed: str | None
) -> tuple[str | None, str | None]:
    """Return the first and last key of `typed`, which is `KEY`, `FIRST..LAST` or nothing. Last is None for one key.

    `Problem` names the partitions of `name`.
    """
    if partitions is None:
        if typed:
            raise Problem(f"{name} has no partitions: leave out '{typed}'")
        return None, None
    keys = partitions.get_partition_keys()
    if not typed:
        raise Problem(
            f"{name} has partitions {keys[0]} to {keys[-1]}: name a partition, or a range FIRST..LAST"
        )
    first, dots, last = typed.partition("..")
    for key in (first, last) if dots else (first,):
        _require_key(name, keys, key)
    if dots and last < first:
        raise Problem(f"{name}: the range {typed} ends before it begins: write FIRST..LAST")
    return first, last if dots else None


def _require_key(name: str, keys: Sequence[str], key: str) -> None:
    """Raise `Problem` with the nearest earlier key if `key` is not among `keys`, which are sorted."""
    at = bisect_left(keys, key)
    if at < len(keys) and keys[at] == key:
        return

    is_hourly, begin = isinstance(begin_of_key(keys[0]), datetime), begin_of_key(key)
    if begin is None or isinstance(begin, datetime) != is_hourly:
        form = "an hour: write YYYY-MM-DDTHH" if is_hourly else "a date: write YYYY-MM-DD"
        raise Problem(f"{name} has no partition '{key}', which is not {form}, from {keys[0]} to {keys[-1]}")
    before = f"; the partition before it is '{keys[at - 1]}'" if 0 < at < len(keys) else ""
    raise Problem(f"{name} has no partition '{key}', only {keys[0]} to {keys[-1]}{before}")
