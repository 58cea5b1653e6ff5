"""Registration of a bundle as a version of its model, if its newest evaluation allows it."""

from collections.abc import Mapping, Sequence

from ml_assets.data.tables.guard import rejections_of
from ml_assets.model.release.bundle_store import Bundle
from ml_assets.model.release.decisions import known_numbers
from ml_assets.model.release.mlflow_view import MlflowView
from ml_assets.model.release.refusals import NotRegistrable, Overtaken, until_not_overtaken
from ml_assets.model.release.registry import RegisteredVersion
from ml_assets.model.release.rows_behind import InputsRejected, contents_of
from ml_assets.model.release.rules import Rules
from ml_assets.model.release.rules_in_force import as_json
from ml_assets.model.release.versions import Numbered, SemanticVersion, next_version
from resources.ledger import EvaluationRow, SemanticName


class Registration(MlflowView):
    """Registrations of all models."""

    def register(
        self,
        bundle: Bundle,
        *,
        run_id: str,
        links: Mapping[str, str],
        rules: Rules | None = None,
    ) -> RegisteredVersion:
        """Return the version of this bundle; register it if there is none.

        The first registration of a model records `rules`, by the author of the evaluation; None leaves that to the
        first decision.
        `links` are tags such as lake commit, Dagster run and partition; a version keeps its first links. `run_id` is
        the MLflow run that trained it. Raises `NotRegistrable`, `InputsUnknown`, and `InputsRejected` if rows that
        trained it are rejected by now.
        """
        facts = bundle.facts
        model = facts.lineage.model

        def registrable() -> EvaluationRow:
            newest = self._log.newest_evaluation(model, bundle.digest)
            if newest is None or newest.status == "rejected":
                why = "was never evaluated" if newest is None else f"is rejected by evaluation {newest.name}"
                raise NotRegistrable(
                    f"{model} {facts.lineage.fingerprint[:12]} {why}: materialize the model and read its "
                    f"evaluation, which names the failed rules. Then change the model or the gates in defs.yaml"
                )
            return newest

        def choose(known: Sequence[SemanticName]) -> str:
            numbered = [
                Numbered(SemanticVersion.parse(one.semantic), one.schema_digest, one.recipe_digest)
                for one in known
            ]
            return str(next_version(numbered, facts.schema_digest, facts.recipe_digest))

        def name_it() -> str:
            evaluation = registrable()
            behind = contents_of(self._lake, self._log, evaluation.trained_on)

            def allow() -> None:
                if registrable() != evaluation:
                    raise Overtaken
                if refused := rejections_of(self._ledger, behind):
                    raise InputsRejected(refused)

            return self._log.name_version(
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
            self._log.record_first_rules(model, as_json(rules), row.by)
        tags = {
            **links,
            "semantic_version": semantic,
            "bundle_digest": bundle.digest,
            "fingerprint": facts.lineage.fingerprint,
            "snapshot_digest": facts.lineage.snapshot_digest,
            "schema_digest": facts.schema_digest,
            "recipe_digest": facts.recipe_digest,
        }
        taken = {
            number
            for number, bundles in known_numbers(self._log, model).items()
            if bundle.digest not in bundles
        }
        version = self._registry.add(bundle, run_id=run_id, tags=tags, taken=taken)
        self.show(model)
        return self._registry.version(model, version.number)
