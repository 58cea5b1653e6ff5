"""A model that was trained elsewhere, over HTTP: gates, a version with its origin, and refusals that do nothing."""

import copy
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import onnx
import pytest

from ml_assets.context.errors import LaunchRefused
from ml_assets.context.foreign import read_foreign
from ml_assets.extras.api.frame import MOST_BYTES
from ml_assets.model.release.foreign_document import ForeignModel
from ml_assets.model.release.releases import releases_of
from ml_assets.model.steps.record import card_of
from ml_assets_tests.api.conftest import ServedApi, running_api
from ml_assets_tests.api.foreign_models import (
    DAMAGE,
    LAST_DAY,
    MODEL,
    PARTITION,
    decoded,
    encoded,
    fitted_document,
    linear,
    without_an_answer_to,
)
from ml_assets_tests.api.test_frame import problem
from ml_assets_tests.api.test_launches import run_of, state
from ml_assets_tests.cli.terminal import Terminal
from resources.settings import Settings

PATH = "/models/register"
PATIENCE = 300


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    """The API over a home with all weeks that `PARTITION` needs."""
    home = tmp_path_factory.mktemp("registering")
    terminal = Terminal(home)
    for table, first in (("datasets/sales", "2023-01-09"), ("features/sales_features", "2023-02-06")):
        said = terminal("launch", table, f"{first}..{PARTITION}")
        assert said.status == 0, said.err
    with running_api(Settings(home=home)) as api:
        yield api


@pytest.fixture(scope="module")
def good(served: ServedApi) -> dict[str, Any]:
    return fitted_document(served.context)


@pytest.fixture
def changed(good: dict[str, Any]) -> dict[str, Any]:
    """A copy of the good document, to change."""
    return copy.deepcopy(good)


@dataclass(frozen=True)
class SentModels:
    """Runs of three documents at once, after they have ended; two of them are the same."""

    accepted: dict[str, Any]
    rejected: dict[str, Any]
    again: dict[str, Any]
    versions_before: int


@contextmanager
def daemon(settings: Settings) -> Generator[None]:
    """Run Dagster's daemon, which starts queued runs."""
    home = settings.dagster_home
    with (home / "daemon.log").open("wb") as log:
        process = subprocess.Popen(
            [Path(sys.executable).with_name("dagster-daemon"), "run", "-m", "ml_assets.definitions"],
            cwd=home,  # the experiment of `running_api` has a relative place for files
            env=os.environ
            | {
                "DAGSTER_HOME": str(home),
                "ML_ASSETS_HOME": str(settings.home),
                "ML_ASSETS_ONLY": json.dumps([MODEL]),
            },
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def ended(api: ServedApi, run_id: str) -> dict[str, Any]:
    """Return the document of a run once it has ended."""
    deadline = time.monotonic() + PATIENCE
    while (told := api.ask("viewer", "GET", f"/training-runs/{run_id}").json())["state"] in (
        "queued",
        "running",
    ):
        assert time.monotonic() < deadline, told
        time.sleep(0.5)
    return told


@pytest.fixture(scope="module")
def sent(served: ServedApi, good: dict[str, Any]) -> SentModels:
    poor: dict[str, Any] = copy.deepcopy(good) | {"origin": "a constant"}
    poor["onnx"] = encoded(linear({row["name"]: 0.0 for row in good["inputs"][:-1]}, {"milk": 0.0}))
    for row in poor["golden"]:
        row["expected"] = 0.0
    versions = len(releases_of(served.platform).registry.versions(MODEL))
    rows, runs = state(served)

    def send(_: int) -> httpx.Response:
        return served.ask("operator", "POST", PATH, good, **{"idempotency-key": "good"})

    with ThreadPoolExecutor(2) as threads:
        both = [*threads.map(send, range(2)), send(2)]
    assert {one.status_code for one in both} == {202}, [one.text for one in both]
    ids = {one.json()["id"] for one in both}
    assert len(ids) == 1
    assert state(served) == (rows + 1, runs + 1)
    (good_id,) = ids
    assert both[0].headers["location"] == f"/api/v1/training-runs/{good_id}"
    answer = served.ask("operator", "POST", PATH, poor)
    assert answer.status_code == 202, answer.text
    repeated = served.ask("operator", "POST", PATH, good)
    assert repeated.status_code == 202, repeated.text
    with daemon(served.context.project.settings):
        accepted, rejected, again = (
            ended(served, run_id) for run_id in (good_id, answer.json()["id"], repeated.json()["id"])
        )
    return SentModels(accepted, rejected, again, versions)


@pytest.mark.timeout(3 * PATIENCE)
def test_an_accepted_model_is_a_version_that_names_its_origin(
    served: ServedApi, sent: SentModels, good: dict[str, Any]
) -> None:
    told, document = sent.accepted, ForeignModel.model_validate(good)
    assert (told["state"], told["why"], told["rejected"]) == ("completed", "", "")
    assert (told["model"], told["partitions"], told["launched_by"]) == (MODEL, PARTITION, "operator")
    assert run_of(served, told["id"]).tags["ml_assets/registers"] == document.digest
    releases = releases_of(served.platform)
    version = releases.version(MODEL, told["version"])
    lineage = releases.store.open(version.bundle_digest).facts.lineage
    assert lineage.elsewhere == {
        "document": document.digest,
        "onnx": document.onnx_sha256,
        "origin": "least squares of numpy",
        "declared_days": {"first": "2023-02-06", "last": LAST_DAY},
    }
    assert (f"{lineage.seen}", lineage.code_version) == (f"2023-02-06 to {LAST_DAY}", "")
    assert set(lineage.windows) == {"holdout"}
    row = next(one for one in served.platform.ledger.models.evaluations(MODEL) if one.run_id == told["id"])
    assert (row.status, row.by.name, row.by.checked_by, row.launched_in) == (
        "blessed",
        "operator",
        "token",
        "pages",
    )
    assert row.launches == ()  # no training of this platform
    card = card_of(served.platform, version).to_markdown()
    assert "Trained elsewhere with least squares of numpy" in card
    assert "Sent by operator (checked by token)" in card
    assert document.digest in card
    assert document.onnx_sha256 in card
    tracked = served.platform.tracker.stored(MODEL, version.run_id)
    assert tracked.tags["trained_elsewhere"] == document.digest
    assert "mlflow.source.git.commit" not in tracked.tags
    model = served.context.load_model(f"{MODEL}/{version.number}")
    for one in document.golden:
        assert model.predict_row(one.inputs) == pytest.approx(one.numbers[0], rel=1e-4)


def test_a_model_that_a_gate_rejects_is_no_version(served: ServedApi, sent: SentModels) -> None:
    told = sent.rejected
    assert (told["state"], told["version"]) == ("completed", None)
    assert "beats the baseline" in told["rejected"]
    row = next(one for one in served.platform.ledger.models.evaluations(MODEL) if one.run_id == told["id"])
    assert row.status == "rejected"
    assert told["rejected"].startswith(row.summary)
    bundles = [one.bundle_digest for one in releases_of(served.platform).registry.versions(MODEL)]
    assert row.bundle_digest not in bundles
    assert len(bundles) == sent.versions_before + 1


def test_the_same_model_again_is_the_same_version(sent: SentModels) -> None:
    assert sent.again["id"] != sent.accepted["id"]
    assert sent.again["version"] == sent.accepted["version"]


def test_a_version_from_elsewhere_cannot_be_trained_again(served: ServedApi, sent: SentModels) -> None:
    from ml_assets.extras.reproduction.reproduce import NotReproducible

    with pytest.raises(NotReproducible, match="trained elsewhere"):
        served.context.reproduce(f"{MODEL}/{sent.accepted['version']}")
    assert not served.context.plan(MODEL, PARTITION).is_as_trained


def test_a_dossier_says_who_sent_the_model(
    served: ServedApi, sent: SentModels, good: dict[str, Any], tmp_path: Path
) -> None:
    from ml_assets.extras.governance.dossier.documents import PROVENANCE
    from ml_assets.extras.governance.dossier.signature import opened
    from ml_assets.extras.governance.dossier.stored import export, write_dossier
    from ml_assets.extras.governance.dossier.verification import verify
    from ml_assets.model.release.signing_keys import PRIVATE, SigningKey, create_keys

    version = releases_of(served.platform).version(MODEL, sent.accepted["version"])
    create_keys(tmp_path)
    key = SigningKey.read(tmp_path / PRIVATE)
    row = write_dossier(served.platform, version, key)
    folder = tmp_path / "dossier"
    export(releases_of(served.platform).store, row, folder)
    assert verify(folder, key.public).model == MODEL
    stated = opened((folder / PROVENANCE).read_text(), key.public, PROVENANCE)
    built = stated["predicate"]["buildDefinition"]
    assert built["buildType"] == "urn:ml-assets:trained-elsewhere:v1"
    named = {one["name"]: one for one in built["resolvedDependencies"]}
    assert "code" not in named
    document = named["registered document"]
    assert document["digest"]["sha256"] == ForeignModel.model_validate(good).digest
    assert (document["annotations"]["sent_by"], document["annotations"]["checked_by"]) == (
        "operator",
        "token",
    )


def refused(api: ServedApi, document: Any, name: str = "operator") -> tuple[int, str, str]:
    """Return status, code and detail of the refusal of a document that changed nothing."""
    before = state(api), api.platform.artifacts.files("foreign")
    answer = api.ask(name, "POST", PATH, document)
    assert (state(api), api.platform.artifacts.files("foreign")) == before
    return *problem(answer), answer.json()["detail"]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_graph_that_is_more_than_arithmetic_is_refused(
    served: ServedApi, changed: dict[str, Any], damage: Callable[[onnx.ModelProto], None]
) -> None:
    model = decoded(changed["onnx"])
    damage(model)
    changed["onnx"] = encoded(model)
    status, code, detail = refused(served, changed)
    assert (status, code) == (422, "foreign_model_refused"), detail


def test_a_text_of_the_vocabulary_without_an_answer_is_refused(
    served: ServedApi, changed: dict[str, Any]
) -> None:
    """No golden row has it, so the evaluation would be the first to ask."""
    model = decoded(changed["onnx"])
    without_an_answer_to(model, "tea")
    changed["onnx"] = encoded(model)
    changed["inputs"][-1]["vocabulary"].append("tea")
    status, code, detail = refused(served, changed)
    assert (status, code) == (422, "foreign_model_refused")
    assert "no finite number for the texts ['tea']" in detail


def test_golden_rows_that_differ_are_refused(served: ServedApi, changed: dict[str, Any]) -> None:
    changed["golden"][3]["expected"] += 0.5
    status, code, detail = refused(served, changed)
    assert (status, code) == (422, "foreign_model_refused")
    assert "golden row 3: the graph answers" in detail


def _label(one: dict[str, Any]) -> None:
    one["inputs"][0]["name"] = "units"
    for row in one["golden"]:
        row["inputs"]["units"] = row["inputs"].pop("units_mean_4w")


def _dtype(one: dict[str, Any]) -> None:
    one["inputs"][0]["dtype"] = "int64"


def _no_vocabulary(one: dict[str, Any]) -> None:
    del one["inputs"][-1]["vocabulary"]


def _too_late(one: dict[str, Any]) -> None:
    one["trained_on"]["last"] = "2023-11-20"


def _classes(one: dict[str, Any]) -> None:
    one["classes"] = ["few", "many"]
    for row in one["golden"]:
        row["expected"] = [0.5, 0.5]


@pytest.mark.parametrize("change", [_label, _dtype, _no_vocabulary, _too_late, _classes])
def test_a_model_that_does_not_fit_the_pipeline_is_refused(
    served: ServedApi, changed: dict[str, Any], change: Callable[[dict[str, Any]], None]
) -> None:
    change(changed)
    status, code, detail = refused(served, changed)
    assert (status, code) == (422, "foreign_model_refused"), detail


def test_the_day_before_the_holdout_may_be_seen(served: ServedApi, changed: dict[str, Any]) -> None:
    """Then the graph is looked at, which is bad here."""
    changed["trained_on"]["last"] = "2023-11-19"
    changed["onnx"] = "AAAA"
    assert "is not an ONNX file" in refused(served, changed)[2] or "not valid" in refused(served, changed)[2]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("trained_on",), None),
        (("trained_on",), {"first": "2023-02-06"}),
        (("trained_on",), {"first": "2023-11-05", "last": "2023-02-06"}),
        (("onnx",), "not base64!"),
        (("onnx",), ""),
        (("golden",), []),
        (("inputs",), []),
        (("origin",), " "),
        (("origin",), "a laptop\n\n# Approved by the board"),
        (("origin",), "a laptop \u202e"),
        (("inputs", 0, "name"), "units_1w"),
        (("golden", 0, "inputs"), {}),
        (("golden", 0, "expected"), [1.0, 2.0]),
        (("golden", 0, "expected"), "inf"),
        (("archive",), "UEsDBA=="),
    ],
)
def test_a_document_that_is_not_whole_is_refused(
    served: ServedApi, changed: dict[str, Any], path: tuple[Any, ...], value: Any
) -> None:
    place: Any = changed
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    assert refused(served, changed)[:2] == (422, "invalid_request")


def test_models_and_partitions_that_are_not_there_are_refused(
    served: ServedApi, changed: dict[str, Any]
) -> None:
    assert refused(served, changed | {"model": "nothing"})[:2] == (404, "not_found")
    assert refused(served, changed | {"partition": "2024-01-09"})[:2] == (422, "launch_refused")
    assert refused(served, changed | {"partition": "2024-01-22"})[:2] == (422, "launch_refused")


def test_a_model_of_ten_megabytes_is_too_large(served: ServedApi, changed: dict[str, Any]) -> None:
    changed["onnx"] = "A" * 10_000_000
    assert refused(served, changed)[:2] == (413, "too_large")


def test_a_large_body_is_read_for_those_alone_who_may_send_it(
    served: ServedApi, changed: dict[str, Any]
) -> None:
    changed["onnx"] = "A" * 2 * MOST_BYTES
    assert refused(served, changed)[:2] == (422, "foreign_model_refused")
    assert refused(served, changed, "viewer")[:2] == (403, "role_needed")
    assert refused(served, changed, "florist")[:2] == (403, "role_needed")
    assert refused(served, changed, "leaver")[:2] == (401, "identity_refused")
    other = served.ask("operator", "POST", "/training-runs", changed)
    assert problem(other) == (413, "too_large")


def test_another_document_with_the_same_key_is_refused(
    served: ServedApi, sent: SentModels, changed: dict[str, Any]
) -> None:
    before = state(served)
    changed["origin"] = "something else"
    answer = served.ask("operator", "POST", PATH, changed, **{"idempotency-key": "good"})
    assert problem(answer) == (409, "idempotency_key_reused")
    assert state(served) == before


def test_the_command_registers_by_the_same_rules(
    served: ServedApi, changed: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "model.json"
    changed["golden"][0]["expected"] += 1
    file.write_text(json.dumps(changed))
    before = state(served)
    said = Terminal(served.context.project.settings.home)("register", str(file))
    assert said.status == 1
    assert "golden row 0: the graph answers" in said.err.replace("\n", " ")
    assert state(served) == before


def test_a_file_without_an_end_is_too_large() -> None:
    """A device has no size, so its size does not decide."""
    with pytest.raises(LaunchRefused, match="more than 9,437,184 bytes"):
        read_foreign(Path("/dev/zero"))


def test_a_spent_budget_does_not_refuse_a_model_from_elsewhere(
    served: ServedApi, changed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It trains nothing. The graph is looked at, whose golden row is wrong here."""
    prices, file = tmp_path / "prices.yaml", tmp_path / "model.json"
    prices.write_text("core_hour: 1\nmonthly_budget: {store_demand: 0}\n")
    monkeypatch.setenv("ML_ASSETS_PRICES", str(prices))
    terminal = Terminal(served.context.project.settings.home)
    assert "cost 0.00 of 0.00" in terminal("launch", MODEL, PARTITION).err
    changed["golden"][0]["expected"] += 1
    file.write_text(json.dumps(changed))
    assert "golden row 0: the graph answers" in terminal("register", str(file)).err.replace("\n", " ")
