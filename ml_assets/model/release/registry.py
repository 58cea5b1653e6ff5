"""Registered models: versions in MLflow's registry, each pointing to a stored bundle.

Here: adding, finding and aliasing versions. Not here: the decision to register or promote (`promotion`; tags and alias
only show it), and bundles (`bundle`, `bundle_store`).
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ml_assets.model.release.bundle_store import BUNDLES, Bundle, digest_in
from resources.tracking.mlflow_client import TrackerRefused, open_client, reaching, write

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion


class VersionMissing(Exception):
    """The registry has no such version."""


class NumberReused(VersionMissing):
    """The registry has another bundle under a number than the one that the ledger decided about."""


@dataclass(frozen=True, kw_only=True)
class RegisteredVersion:
    """One version of a model."""

    model: str
    number: int
    """MLflow's number: 1, 2, 3 …"""
    bundle_digest: str
    """Digest from the version's source, an address in the bundle store. MLflow lets nobody change a source; tags can be
    edited."""
    run_id: str
    """MLflow run that trained it."""
    tags: Mapping[str, str]
    """All tags, for people. No decision uses them."""

    @property
    def semantic(self) -> str:
        """Semantic version from its tag."""
        return self.tags.get("semantic_version", "no semantic version")


_LARGEST_NUMBER = 2**31 - 1
"""Largest number of a version that MLflow's databases hold."""


class Registry:
    """MLflow's model registry at `uri`. Cheap to create; every method may raise `TrackerUnavailable`.

    Only versions that point into the bundle store count. Versions made by hand or by another installation are ignored.
    """

    def __init__(self, uri: str, bundles: str) -> None:
        """Store `uri`, the tracker's address, and `bundles`, which is `BundleStore.address`."""
        self.uri = uri
        self.bundles = bundles

    def add(
        self, bundle: Bundle, *, run_id: str, tags: Mapping[str, str], taken: Container[int] = ()
    ) -> RegisteredVersion:
        """Return the version of this bundle; create it if there is none. An existing version keeps its tags.

        `taken` are numbers of other bundles: a registry that counts from 1 again gives none of them to this bundle.
        Also sets the tag `model_version` of the MLflow run.
        """
        model = bundle.facts.lineage.model
        with reaching(self.uri):
            self._ensure_model(model)
        mine = [one for one in self._of(bundle, model) if one.number not in taken]
        while not mine:
            made = write(
                self.uri,
                lambda: self._client.create_model_version(
                    model, bundle.address, run_id=run_id, tags=dict(tags)
                ),
            )
            # Two processes may create a version at the same time. Both then use the lower number.
            mine = [one for one in self._of(bundle, model) if one.number not in taken]
            if not mine or mine[0].number != int(made.version):
                with reaching(self.uri):
                    self._client.delete_model_version(model, made.version)
        number = mine[0].number
        write(self.uri, lambda: self._client.set_tag(run_id, "model_version", f"{model}/{number}"))
        return mine[0]

    def models(self) -> list[str]:
        """Return the names of the models with a version that points to a bundle, sorted."""
        below = self.bundles.rstrip("/").replace(
            "'", "_"
        )  # a wildcard: MLflow's filters have no quoted quotes
        return sorted({one.model for one in self._search(f"source_path LIKE '{below}/%'")})

    def versions(self, model: str) -> list[RegisteredVersion]:
        """Return all versions of `model` that point to bundles, oldest first; empty if nobody registered it."""
        return sorted(self._search(f"name = '{model}'"), key=lambda one: one.number)

    def _search(self, which: str) -> list[RegisteredVersion]:
        found: list[RegisteredVersion] = []
        token = None
        while True:
            with reaching(self.uri):
                page = self._client.search_model_versions(which, page_token=token)
            found += [one for version in page if (one := registered(version, self.bundles)) is not None]
            token = page.token
            if not token:
                return found

    def version(self, model: str, number: int) -> RegisteredVersion:
        """Return one version. Raises `VersionMissing`."""
        if number > _LARGEST_NUMBER:  # MLflow's database would fail
            raise VersionMissing(f"{model} has no version with a number that long")
        try:
            with reaching(self.uri):
                found = registered(self._client.get_model_version(model, str(number)), self.bundles)
        except TrackerRefused as refusal:
            known = [f"{one.number} ({one.semantic})" for one in self.versions(model)]
            raise VersionMissing(
                f"{model} has no version {number}; it has {', '.join(known) or 'none yet'}"
            ) from refusal
        if found is None:
            raise VersionMissing(
                f"{model} version {number} points to no bundle under {self.bundles}: it was created in MLflow "
                f"by hand, or the home was moved. If it was: ml-assets home move"
            )
        return found

    def is_of_moved_home(self, model: str, number: int, digest: str) -> bool:
        """Return True if a version has the bundle `digest` at an address outside the bundle store: the home was moved.

        No decision uses such a version, because anybody may write to another address.
        """
        with reaching(self.uri):
            source = self._client.get_model_version(model, str(number)).source or ""
        return digest_in(source, self.bundles) is None and source.rstrip("/").endswith(f"/{BUNDLES}/{digest}")

    def aliased(self, model: str, alias: str) -> int | None:
        """Return the number of the version with `alias`; None if no version has it."""
        with reaching(self.uri):
            found = self._client.search_registered_models(f"name = '{model}'")
        aliases: Mapping[str, str] = found[0].aliases if found else {}
        return int(aliases[alias]) if alias in aliases else None

    def set_alias(self, model: str, alias: str, number: int | None) -> None:
        """Move `alias` to a version; delete it if `number` is None."""
        with reaching(self.uri):
            if number is None:
                self._client.delete_registered_model_alias(model, alias)
            else:
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
            except TrackerRefused:  # another process created it meanwhile
                self._client.get_registered_model(model)

    def _of(self, bundle: Bundle, model: str) -> list[RegisteredVersion]:
        return [one for one in self.versions(model) if one.bundle_digest == bundle.digest]


def registered(version: "ModelVersion", bundles: str) -> RegisteredVersion | None:
    """Return one of MLflow's versions; None if its source is no bundle of the store at `bundles`."""
    digest = digest_in(version.source or "", bundles)
    if digest is None:
        return None
    return RegisteredVersion(
        model=version.name,
        number=int(version.version),
        bundle_digest=digest,
        run_id=version.run_id or "",
        tags=dict(version.tags),
    )
