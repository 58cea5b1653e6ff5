"""Routes that change nothing: plans, models and their versions, versions of tables, verdicts, experiments."""

import dataclasses
from typing import Annotated, Any

from fastapi import Query

from ml_assets.context import NotFound
from ml_assets.data.validation.verdict import Finding, Verdict
from ml_assets.extras.api.frame import ApiParts, Routes
from ml_assets.extras.api.shapes import (
    CommitDocument,
    Cursor,
    ExpectedDocument,
    ExperimentRun,
    ExperimentRunDetails,
    Key,
    Limit,
    ListPage,
    ModelDocument,
    Name,
    Number,
    PlanDocument,
    RuleDocument,
    TrackedId,
    VerdictDocument,
    VersionDetails,
    VersionDocument,
    after_of,
    cursor_of,
    number_or_none,
    page_of,
)
from ml_assets.model.release.registry import RegisteredVersion
from ml_assets.model.release.standing import BundleStandings
from resources.tracking.tracker import StoredRun

COMMIT = r"[0-9a-f]{16,64}"
"""Pattern of the id of a commit: a cursor names no other ref of the lake."""
TOKEN = r"\d{1,15} [!-~]{1,200}"
"""Pattern of a place in a list of runs."""
KINDS = ("datasets", "features")
"""First parts of the names of tables."""


def add_reads(routes: Routes, parts: ApiParts) -> None:
    """Add the routes."""
    _add_plan(routes, parts)
    _add_models(routes, parts)
    for kind in KINDS:
        _add_tables(routes, parts, kind)
    _add_experiments(routes, parts)


def _add_plan(routes: Routes, parts: ApiParts) -> None:
    @routes.add("GET", "/plan", role="viewer", summary="What a launch of a model would read and run, and why")
    def plan(
        model: Annotated[str, Query(max_length=100, examples=["store_demand"])],
        partition: Annotated[str | None, Query(max_length=40, description="Default: the newest.")] = None,
    ) -> PlanDocument:
        with parts.declared:
            found = parts.context.plan(model, partition)
        validation = found.validation
        faults = [*filter(None, (found.metric_fault, found.initial_fault))]
        if (missing := found.spec.window.total - len(validation.keys)) > 0:
            faults.append(f"the window lacks {missing} of {found.spec.window.total} partitions")
        if validation.stale and found.spec.on_stale_inputs == "refuse":
            faults.append("`on_stale_inputs: refuse` forbids stale inputs")
        return PlanDocument(
            model=found.model,
            partition=found.partition,
            commit=found.commit,
            ready=validation.ok and not faults,
            done=found.done,
            is_as_trained=found.is_as_trained,
            explanation=validation.explain(),
            refused=dict(validation.refused),
            to_build={name: [one.typed for one in spans] for name, spans in found.to_build.items()},
            to_rebuild={name: [one.typed for one in spans] for name, spans in found.to_rebuild.items()},
            faults=faults,
            first_possible=found.first_possible,
            expected=None
            if found.expected is None
            else ExpectedDocument.model_validate(dataclasses.asdict(found.expected)),
        )


def _add_models(routes: Routes, parts: ApiParts) -> None:
    log, releases = parts.context.project.platform.ledger.models, parts.context.project.releases

    @routes.add(
        "GET",
        "/models",
        role="viewer",
        summary="Models, with the versions in production",
        refuses=(),
        kept_while=(parts.read.decisions,),
    )
    def models(limit: Limit = 50, cursor: Cursor = "") -> ListPage[ModelDocument]:
        with parts.declared:
            declared = set(parts.context.project.declared.pipelines())
        names, after = page_of({*declared, *log.models()}, str, cursor, limit)
        return ListPage(items=[_model(name, name in declared) for name in names], next=after)

    def _model(name: str, is_declared: bool) -> ModelDocument:
        standings = BundleStandings.of_stages(log.stage_changes(name))
        held, canary = standings.in_production, standings.canary
        return ModelDocument(
            name=name,
            declared=is_declared,
            production=None if held is None else held.version,
            canary=None if canary is None else canary.version,
        )

    @routes.add(
        "GET",
        "/models/{name}/versions",
        role="viewer",
        summary="Versions of a model, oldest first",
        kept_while=(parts.read.decisions, parts.read.tracked),
    )
    def versions(name: Name, limit: Limit = 50, cursor: Cursor = "") -> ListPage[VersionDocument]:
        found = releases.registry.versions(name)
        if not found and name not in log.models():
            with parts.declared:
                parts.context.project.declared.pipeline(name)  # `NotFound`, with the nearest name
        standings = releases.standings(name)
        some, after = page_of(found, lambda one: f"{one.number:010}", cursor, limit)
        shown = [VersionDocument(**_version(one, standings.of(one.bundle_digest).stage)) for one in some]
        return ListPage(items=shown, next=after)

    @routes.add(
        "GET",
        "/models/{name}/versions/{v}",
        role="viewer",
        summary="A version, and its evaluation",
        refuses=(404, 409),
        kept_while=(parts.read.decisions, parts.read.tracked, parts.read.training_sets()),
    )
    def version(name: Name, v: Number) -> VersionDetails:
        with parts.declared:
            found = parts.context.show(name, v)
        row = found.evaluation
        frozen = parts.context.runs.frozen_by(row.run_id, name, row.partition)
        return VersionDetails(
            **_version(found.registered, found.stage),
            evaluation=row.evaluation_digest,
            status=row.status,
            summary=row.summary,
            rules=[RuleDocument(**vars(one)) for one in row.rules],
            partition=row.partition,
            table=row.trained_on.table,
            first=row.trained_on.first,
            last=row.trained_on.last,
            lake_commit=row.trained_on.commit,
            snapshot_digest=str(frozen.get("snapshot", "")),
            schema_hash=str(frozen.get("schema_hash", "")),
            split_config_hash=str(frozen.get("split_config_hash", "")),
            dagster_run=row.run_id,
            author=row.by.in_words,
            at=row.at,
        )


def _version(one: RegisteredVersion, stage: str) -> dict[str, Any]:
    return {
        "model": one.model,
        "version": one.number,
        "semantic": one.semantic,
        "stage": stage,
        "bundle_digest": one.bundle_digest,
        "tracking_run": one.run_id,
    }


def _add_tables(routes: Routes, parts: ApiParts, kind: str) -> None:
    @routes.add(
        "GET",
        f"/{kind}/{{table}}/versions",
        role="viewer",
        summary=f"Commits that changed a table of {kind}, newest first",
        kept_while=(parts.read.main,),
    )
    def commits(table: Name, limit: Limit = 50, cursor: Cursor = "") -> ListPage[CommitDocument]:
        after = after_of(cursor, COMMIT)
        more = 1 if after is None else 2  # the last commit of the page before comes again
        found = parts.context.data.log(after or "main", table=f"{kind}/{table}", limit=limit + more)
        some = found[more - 1 :]
        items = [
            CommitDocument(
                commit=one.commit,
                at=one.at,
                message=one.message,
                partitions=list(one.keys),
                run_id=one.run_id,
                author=one.author,
                reason=one.reason,
                code_version=one.code_version,
                **vars(parts.context.data.content(one)),
            )
            for one in some[:limit]
        ]
        return ListPage(items=items, next=cursor_of(items[-1].commit) if len(some) > limit else None)

    @routes.add(
        "GET",
        f"/{kind}/{{table}}/partitions/{{key}}",
        role="viewer",
        summary=f"Newest verdict on a partition of a table of {kind}",
        kept_while=(parts.read.verdicts(kind),),
    )
    def verdict(table: Name, key: Key) -> VerdictDocument:
        name = f"{kind}/{table}"
        row = parts.context.project.platform.ledger.newest_verdicts(name, [key]).get(key)
        if row is None:
            with parts.declared:
                parts.context.project.declared.table(name)  # `NotFound`, with the nearest name
            raise NotFound(f"the ledger has no verdict on {name} {key}: materialize the partition")
        said = Verdict.from_json(row.body_json)
        return VerdictDocument(
            table=name,
            partition=key,
            status=row.status,
            number=row.number,
            at=row.at,
            rows=row.rows,
            content_digest=row.content_digest,
            run_id=row.run_id,
            accepted_by=None if row.acceptance is None else row.acceptance.author,
            findings=[_finding(one) for one in said.findings],
        )


def _finding(one: Finding) -> dict[str, Any]:
    """Return a finding without its examples, which are rows."""
    shown = ("rule", "column", "severity", "measured", "limit", "failing_rows", "explanation")
    return {name: getattr(one, name) for name in shown}


def _add_experiments(routes: Routes, parts: ApiParts) -> None:
    tracker = parts.context.project.platform.tracker

    @routes.add(
        "GET",
        "/experiments/{experiment}/runs",
        role="viewer",
        summary="Trainings in MLflow, newest first",
        kept_while=(parts.read.tracked,),
    )
    def runs(
        experiment: Name,
        filter: Annotated[
            str,
            Query(max_length=500, description="Filter of MLflow.", examples=["metrics.holdout_rmse < 12"]),
        ] = "",
        limit: Limit = 50,
        cursor: Cursor = "",
    ) -> ListPage[ExperimentRun]:
        found, after = tracker.search(experiment, filter, limit=limit, after=after_of(cursor, TOKEN))
        items = [ExperimentRun(**_tracked(one)) for one in found]
        return ListPage(items=items, next=None if after is None else cursor_of(after))

    @routes.add(
        "GET",
        "/experiments/{experiment}/runs/{run}",
        role="viewer",
        summary="A training in MLflow, with all that it has",
        kept_while=(parts.read.tracked, parts.read.files_of_tracked()),
    )
    def run(experiment: Name, run: TrackedId) -> ExperimentRunDetails:
        found = tracker.stored(experiment, run)
        tags = {
            name: value for name, value in found.tags.items() if not name.startswith(("mlflow.", "start/"))
        }
        return ExperimentRunDetails(
            **_tracked(found),
            params=dict(found.params),
            tags=tags,
            artifacts=tracker.attached(run),
            training_folder=found.tags.get("artifacts", ""),
        )


def _tracked(run: StoredRun) -> dict[str, Any]:
    return {
        "id": run.run_id,
        "name": run.name,
        "status": run.status,
        "started_at": run.started_at,
        "ended_at": run.ended_at,
        "metrics": {name: number_or_none(value) for name, value in run.metrics.items()},
        "data_version": run.tags.get("dataset_digest", ""),
        "lake_commit": run.tags.get("lake_commit", ""),
        "git_commit": run.tags.get("mlflow.source.git.commit", ""),
        "dagster_run": run.tags.get("dagster_run", ""),
    }
