"""App for `mlflow server --app-name ml-assets-guard`: no client can make MLflow's registry contradict the ledger.

REST, the pages, GraphQL and MLflow's older paths all reach the registry through one object of the server, its store.
The app puts `GuardedStore` around that object. So no request is parsed twice, and a new path of a later MLflow is
guarded like the old ones. A method of the store that this file does not name is refused.

Models without a decision in the ledger, and prompts, stay as free as without the guard. The app answers a GET of
`/ml-assets-guard` with the head of the ledger's hash chain, so that a client finds out whether a server has the guard,
and of which ledger. Not here: the store itself, which is MLflow's, and access to MLflow's database or to the ledger by
other ways.
"""

# pyright: reportUnknownVariableType=false
# (mlflow's functions for requests have no types)

import os
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from mlflow.environment_variables import MLFLOW_ENABLE_WORKSPACES, MLFLOW_SERVER_ENABLE_JOB_EXECUTION
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import PERMISSION_DENIED, TEMPORARILY_UNAVAILABLE
from mlflow.utils.credentials import get_default_host_creds
from mlflow.utils.rest_utils import http_request
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from ml_assets.model.release.bundle_store import digest_in
from ml_assets.model.release.mlflow_view import ALIASES, DECIDED_TAGS, holder_of, number_of, tags_of
from ml_assets.model.release.registry import RegisteredVersion, registered, stored_version
from ml_assets.model.release.releases import bundles_of
from ml_assets.model.release.standing import BundleStandings
from resources.ledger import Head, Ledger, LedgerError
from resources.platform import Platform
from resources.settings import Settings
from resources.tracking.mlflow_client import TrackerUnavailable, reaching
from resources.web.bounded_uvicorn import bound_this_process
from resources.web.request_counts import MEDIA_TYPE, OTHER, RequestCounts

if TYPE_CHECKING:
    from fastapi import FastAPI
    from flask import Flask

OWN_PATH = "/ml-assets-guard"
"""Path of the server at which the guard answers; `/metrics` below it has the counts of requests to MLflow."""

READS = frozenset(
    {
        "get_latest_versions",
        "get_model_version",
        "get_model_version_by_alias",
        "get_model_version_download_uri",
        "get_registered_model",
        "get_webhook",
        "list_webhooks",
        "list_webhooks_by_event",
        "search_model_versions",
        "search_registered_models",
    }
)
"""Methods of MLflow's store that change nothing."""
HARMLESS = frozenset(
    {
        "create_webhook",
        "delete_webhook",
        "update_model_version",
        "update_registered_model",
        "update_webhook",
    }
)
"""Methods that change only descriptions and webhooks."""
_RECORDED_TAGS = (
    "semantic_version",
    "bundle_digest",
    "fingerprint",
    "snapshot_digest",
    "schema_digest",
    "recipe_digest",
)
"""Tags that a version gets when it is created, and keeps."""
_OF_MLFLOW = "mlflow."
"""Prefix of tags by which MLflow itself decides. `mlflow.prompt.is_prompt` hides a model from searches."""


class GuardedStore:
    """MLflow's registry store; writes that contradict the ledger raise `MlflowException`.

    `store` is an `mlflow.store.model_registry` store. `bundles` is the address of the bundle store.
    """

    def __init__(self, store: Any, ledger: Ledger, bundles: str) -> None:
        self._store = store
        self._log = ledger.models
        self._bundles = bundles

    def __getattr__(self, name: str) -> Any:
        if name in READS | HARMLESS:
            return getattr(self._store, name)
        raise _refusal(
            f"MLflow's registry method {name!r} is unknown to the guard of ml-assets, which knows the methods of "
            "MLflow 3.17. Run the version of the locked requirements"
        )

    def set_registered_model_alias(self, name: str, alias: str, version: Any) -> None:
        """Move an alias. Refuse `production` and `canary` if the ledger names another version, or none."""
        if alias.casefold() in ALIASES:
            self._require_alias(name, alias.casefold(), self._number(name, version))
        self._store.set_registered_model_alias(name, alias, version)

    def delete_registered_model_alias(self, name: str, alias: str) -> None:
        """Delete an alias. Refuse `production` and `canary` if the ledger names a version for it."""
        if alias.casefold() in ALIASES:
            self._require_alias(name, alias.casefold(), None)
        self._store.delete_registered_model_alias(name, alias)

    def create_registered_model(self, name: str, tags: Any = None, *others: Any, **more: Any) -> Any:
        """Create a model. Refuse MLflow's own tags for a name that the ledger knows."""
        self._require_own_tags(name, (tag.key for tag in tags or ()))
        return self._store.create_registered_model(name, tags, *others, **more)

    def set_registered_model_tag(self, name: str, tag: Any) -> None:
        """Set a tag of a model. Refuse MLflow's own tags."""
        self._require_own_tags(name, (tag.key,))
        self._store.set_registered_model_tag(name, tag)

    def delete_registered_model_tag(self, name: str, key: str) -> None:
        """Delete a tag of a model. Refuse MLflow's own tags."""
        self._require_own_tags(name, (key,))
        self._store.delete_registered_model_tag(name, key)

    def rename_registered_model(self, name: str, new_name: str) -> Any:
        """Rename a model. Refuse it if the ledger knows the old or the new name."""
        for one in (name, new_name):
            if self._standings(one) is not None:
                raise _refusal(f"the ledger has decisions about {one}: its name in MLflow stays")
        return self._store.rename_registered_model(name, new_name)

    def delete_registered_model(self, name: str) -> None:
        """Delete a model. Refuse it if the ledger has decisions about it: MLflow would give their numbers again."""
        if self._standings(name) is not None:
            raise _refusal(
                f"the ledger has decisions about versions of {name} by their numbers, and MLflow would count from 1 "
                f"again: the model stays. To take a version out of use: ml-assets archive {name} NUMBER --reason '…'"
            )
        self._store.delete_registered_model(name)

    def create_model_version(
        self, name: str, source: Any, run_id: Any = None, tags: Any = None, *others: Any, **more: Any
    ) -> Any:
        """Create a version. Refuse tags about decisions, and recorded tags if its source is no bundle of the store."""
        if self._standings(name) is not None:
            given = {tag.key: tag.value for tag in tags or ()}
            self._require_own_tags(name, given)
            bundle = digest_in(str(source), self._bundles)
            for key in given:
                if key in DECIDED_TAGS or (bundle is None and key in _RECORDED_TAGS):
                    raise _refusal(
                        f"a new version of {name} cannot have the tag {key!r}: ml-assets writes it"
                    )
            semantic = {one.bundle_digest: one.semantic for one in self._log.names(name)}
            for key, right in (("bundle_digest", bundle), ("semantic_version", semantic.get(bundle or ""))):
                if given.get(key, right) != right:
                    raise _refusal(
                        f"{key} of this version of {name} is {right} in the ledger, not {given[key]}"
                    )
        return self._store.create_model_version(name, source, run_id, tags, *others, **more)

    def set_model_version_tag(self, name: str, version: Any, tag: Any) -> None:
        """Set a tag of a version. Refuse values that differ from the ledger's."""
        self._require_tag(name, version, tag.key, tag.value)
        self._store.set_model_version_tag(name, version, tag)

    def delete_model_version_tag(self, name: str, version: Any, key: str) -> None:
        """Delete a tag of a version. Refuse those that ml-assets writes."""
        self._require_tag(name, version, key, None)
        self._store.delete_model_version_tag(name, version, key)

    def transition_model_version_stage(
        self, name: str, version: Any, stage: str, archive_existing_versions: bool
    ) -> Any:
        """Set MLflow's own stage of a version, its older form of aliases. Refuse it for models of the ledger."""
        if self._standings(name) is not None:
            raise _refusal(
                f"versions of {name} have no stage of MLflow. The ledger has their stages, and MLflow shows them as "
                f"tags: ml-assets promote {name} {version} --reason '…'"
            )
        return self._store.transition_model_version_stage(name, version, stage, archive_existing_versions)

    def delete_model_version(self, name: str, version: Any) -> None:
        """Delete a version. Refuse the one in production and the canary."""
        number = self._number(name, version)
        if (standings := self._standings(name)) is not None:
            versions = self._versions(name)
            for alias in ALIASES:
                if number_of(holder_of(alias, standings), versions) == number:
                    raise _refusal(
                        f"version {number} of {name} has the role {alias} by the ledger and stays in MLflow. First "
                        f"take it out: ml-assets demote {name}{' --canary' if alias == ALIASES[1] else ''} --reason '…'"
                    )
        self._store.delete_model_version(name, version)

    def _standings(self, name: str) -> BundleStandings | None:
        """Return the ledger's records of a model; None if the ledger has no decision about it."""
        try:
            return BundleStandings.read(self._log, name) if self._log.decisions(name) else None
        except LedgerError as error:
            raise MlflowException(
                f"the guard of ml-assets could not ask the ledger, so nothing was changed: {error}",
                error_code=TEMPORARILY_UNAVAILABLE,
            ) from error

    def _versions(self, name: str) -> list[RegisteredVersion]:
        found: list[RegisteredVersion] = []
        token = None
        while True:
            page = self._store.search_model_versions(f"name = '{name}'", page_token=token)
            found += [
                one
                for version in page
                if (one := registered(stored_version(version), self._bundles)) is not None
            ]
            token = page.token
            if not token:
                return sorted(found, key=lambda one: one.number)

    def _number(self, name: str, version: Any) -> int:
        """Return the number of an existing version, however the client wrote it. Raises MLflow's error."""
        return int(self._store.get_model_version(name, version).version)

    def _require_alias(self, name: str, alias: str, number: int | None) -> None:
        """Raise if the ledger gives `alias` to another version than `number`."""
        standings = self._standings(name)
        if standings is None:
            return
        held = holder_of(alias, standings)
        if number == (right := number_of(held, self._versions(name))):
            return
        by = f" (by {held.author} at {held.at:%Y-%m-%d %H:%M} UTC: {held.reason})" if held else ""
        command = f"promote {name} {number}" if number is not None else f"demote {name}"
        raise _refusal(
            f"{name}@{alias} is {f'version {right}' if right else 'no version'} by the ledger{by}. MLflow only shows "
            f"the ledger's decisions. To decide otherwise: ml-assets {command} --reason '…'"
        )

    def _require_tag(self, name: str, version: Any, key: str, value: str | None) -> None:
        """Raise if tag `key` of a version may not become `value`; None: be deleted."""
        if (standings := self._standings(name)) is None:
            return
        self._require_own_tags(name, (key,))
        number = self._number(name, version)
        found = next((one for one in self._versions(name) if one.number == number), None)
        if key in DECIDED_TAGS:
            right = tags_of(standings.of(found.bundle_digest)).get(key) if found is not None else None
        elif key in _RECORDED_TAGS:
            right = found.tags.get(key) if found is not None else None
        else:
            return
        if value != right:
            raise _refusal(
                f"the tag {key!r} of {name} {number} is {right!r} by the ledger, not {value!r}. MLflow only shows it"
            )

    def _require_own_tags(self, name: str, keys: Iterable[str]) -> None:
        """Raise if one of `keys` is a tag by which MLflow itself decides, for a model of the ledger."""
        stray = [key for key in keys if key.startswith(_OF_MLFLOW)]
        if stray and self._standings(name) is not None:
            raise _refusal(f"the tag {stray[0]!r} would change how MLflow finds {name}")


def create_app() -> "FastAPI | Flask":
    """Return MLflow's server with the guard; `mlflow server` calls it in each of its processes.

    The environment names the ledger and the artifacts as for `ml-assets` (`ML_ASSETS_*`). Raises `MlflowException` if
    the server has parts that the guard does not cover.
    """
    from mlflow.server import app, handlers
    from mlflow.server.fastapi_app import app as over_asgi

    # Jobs run in processes of their own with the database's address. Workspaces rename and delete models in SQL.
    for setting in (MLFLOW_SERVER_ENABLE_JOB_EXECUTION, MLFLOW_ENABLE_WORKSPACES):
        if setting.get():
            raise _refusal(f"the guard of ml-assets does not cover it: set {setting.name}=false")
    bound_this_process()
    platform = Platform(Settings())
    guarded = GuardedStore(
        handlers._get_model_registry_store(),  # pyright: ignore[reportPrivateUsage]
        platform.ledger,
        bundles_of(platform).address,
    )
    handlers._model_registry_store = guarded  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    in_use = cast("object", handlers._get_model_registry_store())  # pyright: ignore[reportPrivateUsage]
    if in_use is not guarded:
        raise _refusal("this MLflow opens its registry in another way than 3.17: run the locked version")
    app.add_url_rule(OWN_PATH, "ml_assets_guard", lambda: _presence(platform.ledger), methods=["GET"])
    _count_requests(app)
    return over_asgi if os.environ.get("_MLFLOW_SGI_NAME") == "uvicorn" else app


def _presence(ledger: Ledger) -> tuple[dict[str, str | int], int]:
    """Return the answer at `OWN_PATH`, and its HTTP status."""
    try:
        head = ledger.models.head()
    except LedgerError as error:
        return {"error": f"the guard of ml-assets could not ask the ledger: {error}"}, 503
    return {"place": head.place, "digest": head.digest}, 200


def _count_requests(app: "Flask") -> None:
    """Count the requests to MLflow by their routes, and answer with the counts. MLflow asks nobody who reads.

    MLflow may have several processes. With PROMETHEUS_MULTIPROC_DIR, a variable of Prometheus's client, each answers
    with the counts of all.
    """
    from flask import Response, g, request

    counts = RequestCounts(
        requests="ml_assets_guard_requests_total", seconds="ml_assets_guard_request_seconds"
    )
    shared = CollectorRegistry()
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        MultiProcessCollector(shared)
    else:
        shared = counts.registry

    def begin() -> None:
        g.ml_assets_began = time.monotonic()

    def end(answer: Response) -> Response:
        path = request.url_rule.rule if request.url_rule is not None else OTHER
        # A hook before this one may have answered.
        began = g.get("ml_assets_began", time.monotonic())
        counts.answered(request.method, path, answer.status_code, time.monotonic() - began)
        return answer

    app.before_request(begin)
    app.after_request(end)
    app.add_url_rule(
        f"{OWN_PATH}/metrics",
        "ml_assets_guard_metrics",
        lambda: Response(generate_latest(shared), content_type=MEDIA_TYPE),
        methods=["GET"],
    )


def guarded_head(uri: str) -> Head | None:
    """Return the head of the hash chain that the guard of an MLflow server reads; None if it has no guard.

    Raises `TrackerUnavailable` if the server does not answer, or its guard gets no answer from the ledger.
    """
    with reaching(uri):
        answer: Any = http_request(
            get_default_host_creds(uri), OWN_PATH, "GET", max_retries=0, raise_on_status=False
        )
    try:
        found = answer.json()
    except ValueError:  # an unknown path, for MLflow or a proxy before it
        return None
    match found:
        case {"place": int(place), "digest": str(digest)}:
            return Head(place=place, digest=digest)
        case {"error": str(why)} if answer.status_code == 503:
            raise TrackerUnavailable(why)
        case _:
            return None


def _refusal(message: str) -> Exception:
    return MlflowException(message, error_code=PERMISSION_DENIED)
