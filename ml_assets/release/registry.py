"""Registered models: versions in MLflow's registry, each pointing to a stored bundle.

Here: registering, finding and aliasing versions. Not here: which version is in production (`promotion`; the
alias is only its picture) and what a bundle is (`bundle`, `store`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ml_assets.release.store import Bundle
from ml_assets.release.versions import Numbered, SemanticVersion, next_version
from resources.mlflow_client import TrackerRefused, open_client, reaching, write

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

GateStatus = Literal["blessed", "undecided", "rejected"]


class NotRegistrable(Exception):
    """The gate rejected the model: its evaluation is kept, a version is not made."""


class VersionMissing(Exception):
    """The registry has no such version."""


@dataclass(frozen=True, kw_only=True)
class RegisteredVersion:
    """One version of a model."""

    model: str
    number: int
    """MLflow's: 1, 2, 3 …"""
    semantic: SemanticVersion
    bundle_digest: str
    fingerprint: str
    gate_status: str
    """`blessed` or `undecided`."""
    run_id: str
    """MLflow run that trained it."""
    tags: Mapping[str, str]
    """All tags, the links among them."""


class Registry:
    """MLflow's model registry at `uri`. Cheap to make; every method may raise `TrackerUnavailable`."""

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def register(
        self, bundle: Bundle, *, run_id: str, gate_status: GateStatus, links: Mapping[str, str]
    ) -> RegisteredVersion:
        """The version of this bundle and training, made if it is not there yet.

        `links` are tags that lead elsewhere, such as lake commit, Dagster run and partition. The same bundle
        and fingerprint give the same version, which keeps its first links; its gate status follows the newest
        verdict. The MLflow run gets the tag `model_version`. Raises `NotRegistrable` for `rejected`.
        """
        lineage = bundle.facts.lineage
        if gate_status == "rejected":
            raise NotRegistrable(
                f"the gate rejected {lineage.model} {lineage.fingerprint[:12]}: the evaluation names rule, "
                "slice and margin; train again after a change, or change the gates in defs.yaml"
            )
        with reaching(self.uri):
            self._ensure_model(lineage.model)
            mine = self._same(bundle)
            if not mine:
                tags = {**links, **self._tags(bundle, gate_status)}
                made = self._client.create_model_version(
                    lineage.model, bundle.address, run_id=run_id, tags=tags
                )
                # Two processes may get here together; both then agree on the lowest number.
                mine = self._same(bundle)
                if mine[0].number != int(made.version):
                    self._client.delete_model_version(lineage.model, made.version)
        number = mine[0].number
        if mine[0].gate_status != gate_status:
            self.tag(lineage.model, number, "gate_status", gate_status)
        write(self.uri, lambda: self._client.set_tag(run_id, "model_version", f"{lineage.model}/{number}"))
        return self.version(lineage.model, number)

    def versions(self, model: str) -> list[RegisteredVersion]:
        """All versions of `model`, oldest first; none if nobody registered it."""
        with reaching(self.uri):
            return self._search(f"name = '{model}'")

    def version(self, model: str, number: int) -> RegisteredVersion:
        """One version, or `VersionMissing`."""
        try:
            with reaching(self.uri):
                return _registered(self._client.get_model_version(model, str(number)))
        except TrackerRefused as refusal:
            known = [f"{one.number} ({one.semantic})" for one in self.versions(model)]
            raise VersionMissing(
                f"{model} has no version {number}; it has {', '.join(known) or 'none yet'}"
            ) from refusal

    def aliased(self, model: str, alias: str) -> int | None:
        """Number of the version that carries `alias`, or None."""
        with reaching(self.uri):
            found = self._client.search_registered_models(f"name = '{model}'")
        aliases: Mapping[str, str] = found[0].aliases if found else {}
        return int(aliases[alias]) if alias in aliases else None

    def set_alias(self, model: str, alias: str, number: int) -> None:
        """Move `alias` to a version."""
        with reaching(self.uri):
            self._client.set_registered_model_alias(model, alias, str(number))

    def tag(self, model: str, number: int, name: str, value: str) -> None:
        """Set a tag of a version."""
        write(self.uri, lambda: self._client.set_model_version_tag(model, str(number), name, value))

    @property
    def _client(self) -> Any:
        return open_client(self.uri)

    def _ensure_model(self, model: str) -> None:
        if not self._client.search_registered_models(f"name = '{model}'"):
            try:
                with reaching(self.uri):
                    self._client.create_registered_model(model)
            except TrackerRefused:  # another process made it meanwhile
                self._client.get_registered_model(model)

    def _same(self, bundle: Bundle) -> list[RegisteredVersion]:
        lineage = bundle.facts.lineage
        wanted = f"name = '{lineage.model}' and tags.bundle_digest = '{bundle.digest}'"
        return [one for one in self._search(wanted) if one.fingerprint == lineage.fingerprint]

    def _search(self, wanted: str) -> list[RegisteredVersion]:
        found: list[RegisteredVersion] = []
        token = None
        while True:
            page = self._client.search_model_versions(wanted, page_token=token)
            # Versions that somebody made by hand carry none of our tags, and are none of ours.
            found += [_registered(one) for one in page if "bundle_digest" in one.tags]
            token = page.token
            if not token:
                return sorted(found, key=lambda one: one.number)

    def _tags(self, bundle: Bundle, gate_status: str) -> dict[str, str]:
        facts = bundle.facts
        lineage = facts.lineage
        known = [
            Numbered(one.semantic, one.tags["schema_digest"], one.tags["recipe_digest"])
            for one in self._search(f"name = '{lineage.model}'")
        ]
        number = next_version(known, facts.schema_digest, facts.recipe_digest)
        return {
            "semantic_version": str(number),
            "bundle_digest": bundle.digest,
            "fingerprint": lineage.fingerprint,
            "snapshot_digest": lineage.snapshot_digest,
            "schema_digest": facts.schema_digest,
            "recipe_digest": facts.recipe_digest,
            "gate_status": gate_status,
            "stage": "staging",
        }


def _registered(version: "ModelVersion") -> RegisteredVersion:
    tags: dict[str, str] = dict(version.tags)
    return RegisteredVersion(
        model=version.name,
        number=int(version.version),
        semantic=SemanticVersion.parse(tags["semantic_version"]),
        bundle_digest=tags["bundle_digest"],
        fingerprint=tags["fingerprint"],
        gate_status=tags["gate_status"],
        run_id=version.run_id or "",
        tags=tags,
    )
