"""Registration of a bundle as a version of its model, if its newest evaluation allows it; semantic versions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from ml_assets.data.tables.guard import rejections_of
from ml_assets.model.release.bundle_store import Bundle
from ml_assets.model.release.mlflow_view import show
from ml_assets.model.release.registry import RegisteredVersion
from ml_assets.model.release.releases import (
    NotRegistrable,
    Overtaken,
    Releases,
    known_numbers,
    until_not_overtaken,
)
from ml_assets.model.release.rules import Rules
from ml_assets.model.release.rules_in_force import as_json
from ml_assets.model.release.standing import InputsRejected, contents_of
from resources.ledger import EvaluationRow, SemanticName


@dataclass(frozen=True, order=True)
class SemanticVersion:
    """`major.minor.patch`, ordered."""

    major: int
    minor: int
    patch: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Inverse of `str`."""
        major, minor, patch = (int(part) for part in text.split("."))
        return cls(major, minor, patch)

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


def next_version(
    known: Iterable[tuple[SemanticVersion, str, str]], schema_digest: str, recipe_digest: str
) -> SemanticVersion:
    """Return the number of a new version, counted from the highest in `known`; the first is 1.0.0.

    `known` has number, schema digest and recipe digest of each registered version. Major: input columns, label,
    objective or classes changed. Minor: code or configuration changed. Patch: only the data changed.
    """
    number, schema, recipe = max(known, default=(None, "", ""))
    if number is None:
        return SemanticVersion(1, 0, 0)
    if schema != schema_digest:
        return SemanticVersion(number.major + 1, 0, 0)
    if recipe != recipe_digest:
        return SemanticVersion(number.major, number.minor + 1, 0)
    return SemanticVersion(number.major, number.minor, number.patch + 1)


def register(
    releases: Releases,
    bundle: Bundle,
    *,
    run_id: str,
    links: Mapping[str, str],
    rules: Rules | None = None,
) -> RegisteredVersion:
    """Return the version of this bundle; register it if there is none.

    The first registration of a model records `rules`, by the author of the evaluation; None leaves that to the first
    decision. `links` are tags such as lake commit, Dagster run and partition; a version keeps its first links. `run_id`
    is the MLflow run that trained it. Raises `NotRegistrable`, `InputsUnknown`, and `InputsRejected` if rows that
    trained it are rejected by now.
    """
    facts, log, registry = bundle.facts, releases.log, releases.registry
    model = facts.lineage.model

    def registrable() -> EvaluationRow:
        newest = log.newest_evaluation(model, bundle.digest)
        if newest is None or newest.status == "rejected":
            why = "was never evaluated" if newest is None else f"is rejected by evaluation {newest.name}"
            raise NotRegistrable(
                f"{model} {facts.lineage.fingerprint[:12]} {why}: materialize the model and read its "
                f"evaluation, which names the failed rules. Then change the model or the gates in defs.yaml"
            )
        return newest

    def choose(known: Sequence[SemanticName]) -> str:
        numbered = [
            (SemanticVersion.parse(one.semantic), one.schema_digest, one.recipe_digest) for one in known
        ]
        return str(next_version(numbered, facts.schema_digest, facts.recipe_digest))

    def name_it() -> str:
        evaluation = registrable()
        behind = contents_of(releases.lake, log, evaluation.trained_on)

        def allow() -> None:
            if registrable() != evaluation:
                raise Overtaken
            if refused := rejections_of(releases.ledger, behind):
                raise InputsRejected(refused)

        return log.name_version(
            model,
            bundle.digest,
            schema_digest=facts.schema_digest,
            recipe_digest=facts.recipe_digest,
            choose=choose,
            allow=allow,
        )

    semantic = until_not_overtaken(name_it)
    if rules is not None:
        row = registrable()
        log.record_first_rules(model, as_json(rules), row.by)
    tags = {
        **links,
        "semantic_version": semantic,
        "bundle_digest": bundle.digest,
        "fingerprint": facts.lineage.fingerprint,
        "snapshot_digest": facts.lineage.snapshot_digest,
        "schema_digest": facts.schema_digest,
        "recipe_digest": facts.recipe_digest,
    }
    taken = {number for number, bundles in known_numbers(log, model).items() if bundle.digest not in bundles}
    version = registry.add(bundle, run_id=run_id, tags=tags, taken=taken)
    show(registry, log, model)
    return registry.version(model, version.number)
