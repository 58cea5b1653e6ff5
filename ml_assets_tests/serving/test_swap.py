"""Changes of version while requests run; ledger and bundles that are away."""

import shutil
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ml_assets.model.release.bundle_store import BundleStore
from ml_assets.use.serving.watch import CanaryShare
from ml_assets_tests.serving.conftest import MODEL, Serve, Serving, record_promotion
from resources.artifacts import FolderArtifacts
from resources.ledger import Ledger, Person


def _version(serving: Serving) -> int:
    answered = serving.predict(serving.row())
    assert answered.status_code == 200, answered.text
    return answered.json()["version"]


def test_promotion_rollback_and_demotion_are_followed(serve: Serve) -> None:
    serving = serve()
    assert _version(serving) == 1
    serving.promote(2)
    assert _version(serving) == 2
    serving.promote(1)
    assert _version(serving) == 1
    back = serving.promote(2)
    serving.ledger.models.demote(back, by=Person.unchecked("ada"), reason="wrong labels")
    serving.parts.watch.refresh()
    assert serving.predict({}).status_code == 503


def test_accepted_rules_change_the_share_without_a_restart(serve: Serve) -> None:
    """A canary is a shadow, answers its share, reads another entity, and is a shadow again."""
    serving = serve()
    canary = serving.promote(2, "canary")
    entity = serving.of_canary(2)

    def roles_after(share: CanaryShare | None) -> tuple[str, dict[str, Any]]:
        serving.accept(share)
        serving.parts.watch.refresh()
        answered = serving.predict(serving.row(tail=entity, carrier=entity)).json()
        return answered["role"], serving.client.get("/models").json()[MODEL]

    for by in ("tail", "carrier"):
        role, roles = roles_after(CanaryShare(share=0.5, by=(by,)))
        assert (role, roles["shadows"]) == ("canary", [])
    refused = serving.predict({name: one for name, one in serving.row().items() if name != "carrier"})
    assert (refused.status_code, refused.json()["field"]) == (422, "carrier")
    role, _ = roles_after(CanaryShare(share=1e-12, by=("tail",)))
    assert role == "production"
    role, roles = roles_after(None)
    assert (role, roles["canary"]) == ("production", None)
    assert [one["bundle_digest"] for one in roles["shadows"]] == [canary.bundle_digest]


def test_no_request_fails_while_versions_change(serve: Serve) -> None:
    """Four clients ask without a break through 12 changes; each answer is of the version before or after."""
    serving = serve()
    row = serving.row()
    over = threading.Event()
    answered: Counter[tuple[int, int | None]] = Counter()

    def ask() -> None:
        while not over.is_set():
            found = serving.predict(row)
            answered[found.status_code, found.json().get("version")] += 1

    clients = [threading.Thread(target=ask) for _ in range(4)]
    for client in clients:
        client.start()
    try:
        for change in range(12):
            before = answered.total()
            serving.promote(change % 3 + 1)
            while answered.total() < before + 4:
                over.wait(0.01)
    finally:
        over.set()
        for client in clients:
            client.join()
    assert {status for status, _ in answered} == {200}
    assert {version for _, version in answered} == {1, 2, 3}


def test_roles_show_in_models_and_metrics(serve: Serve) -> None:
    serving = serve()
    serving.promote(2)
    [role] = [serving.client.get("/models").json()[MODEL]["production"]]
    assert (role["version"], role["bundle_digest"]) == (2, serving.bundles[1].digest)
    assert serving.metric("version", version="2", role="production") == 1
    assert serving.metric("version", version="1", role="production") == 0


def test_a_bundle_that_is_away_keeps_the_old_version_until_it_is_back(
    serve: Serve, tmp_path: Path, store: BundleStore
) -> None:
    shutil.copytree(store.root, tmp_path / "bundles")
    serving = serve(store=BundleStore(FolderArtifacts(tmp_path)))
    folder = tmp_path / "bundles" / serving.bundles[1].digest
    folder.rename(tmp_path / "elsewhere")
    serving.promote(2)
    assert _version(serving) == 1
    ready = serving.client.get("/ready")
    [problem] = ready.json()["models"][MODEL]["problems"]
    assert ready.status_code == 200
    assert "version 2 is production in the ledger and does not load, so version 1 keeps answering" in problem
    assert "no bundle" in problem
    assert serving.metric("problems", model=MODEL) == 1
    (tmp_path / "elsewhere").rename(folder)
    serving.parts.watch.refresh()
    assert _version(serving) == 2
    assert serving.client.get("/ready").json()["models"][MODEL]["problems"] == []


def test_an_altered_bundle_never_answers(serve: Serve, tmp_path: Path, store: BundleStore) -> None:
    shutil.copytree(store.root, tmp_path / "bundles")
    serving = serve(None, store=BundleStore(FolderArtifacts(tmp_path)))
    graph = tmp_path / "bundles" / serving.bundles[0].digest / "model.onnx"
    content = bytearray(graph.read_bytes())
    content[len(content) // 2] ^= 1
    graph.chmod(0o644)
    graph.write_bytes(content)
    serving.promote(1)
    answered = serving.predict({})
    assert answered.status_code == 503
    assert "version 1 is production in the ledger and does not load, so it does not answer" in answered.text


def test_a_ledger_that_vanished_is_named_without_its_statements(serve: Serve, tmp_path: Path) -> None:
    serving = serve()
    for part in tmp_path.glob("ledger.db*"):
        if part.is_file():
            part.unlink()
    serving.parts.watch.refresh()
    assert _version(serving) == 1
    problem = serving.client.get("/ready").json()["ledger"]["problem"]
    assert "check ML_ASSETS_LEDGER_URL" in problem
    assert "SELECT" not in problem


def test_an_empty_ledger_in_place_of_the_ledger_is_a_lost_one(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that starts without the file makes an empty ledger: a running server then answered nobody any more."""
    monkeypatch.setattr("resources.web.last_answers.AGAIN_SECONDS", 0.0)
    serving = serve()
    for part in tmp_path.glob("ledger.db*"):
        if part.is_file():
            part.unlink()
    empty = Ledger(f"sqlite:///{tmp_path}/ledger.db")
    assert empty.models.models() == []
    started = serve(None, ledger=empty)
    for one in (serving, started):
        one.parts.watch.refresh()
        assert _version(one) == 1
        ready = one.client.get("/ready")
        assert ready.status_code == 200
        assert "is empty, and row 1 was read before" in ready.json()["ledger"]["problem"]
    record_promotion(empty, serving.bundles[1], 2)
    started.parts.watch.refresh()
    assert (_version(started), started.client.get("/ready").json()["ledger"]["problem"]) == (2, "")


def test_a_ledger_that_is_away_changes_no_answer(serve: Serve, tmp_path: Path) -> None:
    serving = serve()
    for part in tmp_path.glob("ledger.db*"):
        if part.is_file():
            part.write_bytes(b"not a database" * 1_000)
    serving.parts.watch.refresh()
    assert _version(serving) == 1
    ready = serving.client.get("/ready")
    assert ready.status_code == 200
    assert ready.json()["ledger"]["problem"]
    assert serving.metric("ledger_problem") == 1
    assert serving.metric("ledger_age_seconds") > 0


def test_a_server_that_starts_without_its_ledger_serves_the_last_version(serve: Serve) -> None:
    away = Ledger("postgresql+psycopg2://nobody@127.0.0.1:1/none", patience_seconds=0.1)
    serve().promote(2)
    serving = serve(None, ledger=away)
    assert _version(serving) == 2
    ready = serving.client.get("/ready")
    state = ready.json()["ledger"]
    assert ready.status_code == 200
    assert "its last answer counts, read " in state["problem"]
    assert "does not answer" in state["problem"]
    assert state["age_seconds"] > 0
    assert serving.metric("ledger_problem") == 1


def test_a_server_starts_without_its_ledger_and_says_so(serve: Serve) -> None:
    away = Ledger("postgresql+psycopg2://nobody@127.0.0.1:1/none", patience_seconds=0.1)
    serving = serve(None, ledger=away)
    answered = serving.predict({})
    assert answered.status_code == 503
    assert "the ledger was not read yet" in answered.json()["message"]
    assert serving.client.get("/ready").status_code == 503
    assert serving.metric("ledger_age_seconds") == float("inf")
