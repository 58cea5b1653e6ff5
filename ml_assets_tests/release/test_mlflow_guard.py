"""The guard around MLflow's own store. A real server with it: `components/end_to_end/test_mlflow_guard.py`."""

from collections.abc import Callable
from typing import Any

import pytest
from mlflow.entities.model_registry import ModelVersionTag, RegisteredModelTag
from mlflow.exceptions import MlflowException
from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore

from ml_assets.extras.governance.mlflow_guard import HARMLESS, READS, GuardedStore
from ml_assets.model.release.bundle_store import Bundle, BundleStore
from ml_assets.model.release.promotion import promote
from ml_assets.model.release.releases import Releases
from ml_assets.model.release.rollback import demote
from resources.ledger import Ledger, Person

REFUSED = {
    # The server's routes do not call them: MLflow's clients build prompts of the other methods.
    "copy_model_version",
    "create_prompt",
    "create_prompt_version",
    "delete_prompt",
    "delete_prompt_alias",
    "delete_prompt_tag",
    "delete_prompt_version",
    "delete_prompt_version_tag",
    "get_prompt",
    "get_prompt_version",
    "get_prompt_version_by_alias",
    "link_prompt_version_to_model",
    "link_prompt_version_to_run",
    "link_prompts_to_trace",
    "search_prompt_versions",
    "search_prompts",
    "set_prompt_alias",
    "set_prompt_tag",
    "set_prompt_version_tag",
    "test_webhook",
}


@pytest.fixture
def guarded(
    releases: Releases,
    two_versions: tuple[Bundle, Bundle],
    tracking_uri: str,
    ledger: Ledger,
    store: BundleStore,
) -> GuardedStore:
    """The registry with versions 1 and 2 of `small`, 1 in production, behind the guard."""
    promote(releases, "small", 1, by=Person.unchecked("ada"), reason="first")
    return GuardedStore(SqlAlchemyStore(tracking_uri), ledger, store.address)


def refused(call: Callable[..., Any], *arguments: Any, **more: Any) -> str:
    with pytest.raises(MlflowException) as caught:
        call(*arguments, **more)
    assert caught.value.error_code == "PERMISSION_DENIED"
    return caught.value.message


def test_every_method_of_mlflows_store_is_known_or_refused() -> None:
    """A method that a later MLflow adds is in none of these sets, and refused until somebody reads it."""
    own = {name for name in vars(GuardedStore) if not name.startswith("_")}
    public = {name for name in dir(SqlAlchemyStore) if not name.startswith("_")}
    public = {name for name in public if callable(getattr(SqlAlchemyStore, name))}
    assert READS.isdisjoint(HARMLESS | own)
    assert HARMLESS.isdisjoint(own)
    assert public - READS - HARMLESS - own == REFUSED
    assert public >= own | READS | HARMLESS


def test_an_unknown_method_is_refused(guarded: GuardedStore) -> None:
    assert "'set_prompt_alias' is unknown to the guard" in refused(lambda: guarded.set_prompt_alias)


def test_aliases_move_only_to_what_the_ledger_says(guarded: GuardedStore, releases: Releases) -> None:
    for alias in ("production", "Production", "canary"):
        said = refused(guarded.set_registered_model_alias, "small", alias, "2")
        assert "ml-assets promote small 2 --reason" in said
    assert "by ada at" in refused(guarded.delete_registered_model_alias, "small", "production")
    guarded.set_registered_model_alias("small", "production", "1")
    guarded.set_registered_model_alias("small", "newest", "2")
    guarded.delete_registered_model_alias("small", "canary")
    demote(releases, "small", by=Person.unchecked("ada"), reason="all wrong")
    refused(guarded.set_registered_model_alias, "small", "production", "1")
    guarded.delete_registered_model_alias("small", "production")


def test_a_version_with_a_role_and_its_model_stay(guarded: GuardedStore, releases: Releases) -> None:
    assert "version 1 of small has the role production" in refused(guarded.delete_model_version, "small", "1")
    refused(guarded.delete_registered_model, "small")
    refused(guarded.rename_registered_model, "small", "other")
    guarded.create_registered_model("other")
    refused(guarded.rename_registered_model, "other", "small")
    refused(guarded.transition_model_version_stage, "small", "2", "Production", False)
    guarded.delete_model_version("small", "2")
    demote(releases, "small", by=Person.unchecked("ada"), reason="all wrong")
    guarded.delete_model_version("small", "1")
    assert "MLflow would count from 1 again" in refused(guarded.delete_registered_model, "small")


def test_tags_of_decisions_have_the_ledgers_value(guarded: GuardedStore) -> None:
    for name, value in (("stage", "production"), ("gate_status", "rejected"), ("bundle_digest", "0" * 64)):
        refused(guarded.set_model_version_tag, "small", "2", ModelVersionTag(name, value))
        refused(guarded.delete_model_version_tag, "small", "2", name)
    guarded.set_model_version_tag("small", "2", ModelVersionTag("stage", "staging"))
    guarded.set_model_version_tag("small", "2", ModelVersionTag("note", "mine"))
    guarded.delete_model_version_tag("small", "2", "note")


def test_no_tag_hides_a_model_from_mlflows_searches(guarded: GuardedStore) -> None:
    hides = RegisteredModelTag("mlflow.prompt.is_prompt", "true")
    refused(guarded.set_registered_model_tag, "small", hides)
    refused(guarded.delete_registered_model_tag, "small", hides.key)
    refused(guarded.set_model_version_tag, "small", "1", ModelVersionTag(hides.key, hides.value))
    refused(guarded.create_model_version, "small", "s3://elsewhere", tags=[hides])
    guarded.set_registered_model_tag("small", RegisteredModelTag("owner", "ada"))


def test_a_version_cannot_be_created_with_tags_that_lie(guarded: GuardedStore, bundle: Bundle) -> None:
    for tags in ({"stage": "production"}, {"bundle_digest": "0" * 64}, {"semantic_version": "9.0.0"}):
        given = [ModelVersionTag(name, value) for name, value in tags.items()]
        refused(guarded.create_model_version, "small", bundle.address, tags=given)
        refused(guarded.create_model_version, "small", "s3://elsewhere/model", tags=given)
    made = guarded.create_model_version(
        "small", "s3://elsewhere/model", tags=[ModelVersionTag("note", "mine")]
    )
    refused(guarded.set_registered_model_alias, "small", "production", made.version)


def test_other_models_and_prompts_are_as_free_as_before(guarded: GuardedStore) -> None:
    prompt = RegisteredModelTag("mlflow.prompt.is_prompt", "true")
    for name, tags in (("theirs", []), ("greeting", [prompt])):
        guarded.create_registered_model(name, tags)
        guarded.create_model_version(
            name, "s3://elsewhere/model", tags=[ModelVersionTag("stage", "production")]
        )
        guarded.set_registered_model_alias(name, "production", "1")
        guarded.delete_registered_model_alias(name, "production")
    guarded.transition_model_version_stage("theirs", "1", "Production", False)
    guarded.rename_registered_model("theirs", "renamed")
    guarded.delete_model_version("renamed", "1")
    guarded.delete_registered_model("renamed")


def test_without_the_ledger_nothing_moves(tracking_uri: str, store: BundleStore) -> None:
    away = Ledger("postgresql://nobody@127.0.0.1:1/ledger", patience_seconds=0)
    guarded = GuardedStore(SqlAlchemyStore(tracking_uri), away, store.address)
    with pytest.raises(MlflowException, match="could not ask the ledger, so nothing was changed") as caught:
        guarded.rename_registered_model("small", "other")
    assert caught.value.error_code == "TEMPORARILY_UNAVAILABLE"
    assert guarded.search_registered_models() == []
