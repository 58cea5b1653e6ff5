"""A canary from its requests to its end: the sensor takes back a worse one, and an equal one goes into production."""

import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pytest

from ml_assets.model.release.bundle import build_bundle
from ml_assets.model.release.bundle_store import Bundle
from ml_assets.model.release.history import lines
from ml_assets.model.release.onnx_graph import MatrixGraph
from ml_assets.model.release.promotion import newest_data, promote
from ml_assets.model.release.releases import NotPromotable, bundles_of, registry_of, releases_of
from ml_assets.model.release.rules import NO_RULES
from ml_assets.model.release.runtime import ServingModel
from ml_assets.model.release.standing import PRODUCTION
from ml_assets.model.steps.scoring import Scorer, Scorers, scored_rows
from ml_assets.use.live.canary_watch import WATCH, evidence, in_lines, watch_canary
from ml_assets.use.serving.request_log import day_folder
from ml_assets_tests.components.canary_home import DAYS, CanaryHome, begun, with_new_canary
from ml_assets_tests.components.installation import Installation
from ml_assets_tests.components.readings_pipeline import MODEL
from ml_assets_tests.release.conftest import contents_of
from ml_assets_tests.release.test_matrix import failing_above
from resources.artifacts import ArtifactsUnavailable, FolderArtifacts
from resources.ledger import Person


@pytest.fixture(scope="module")
def _exported(tmp_path_factory: pytest.TempPathFactory, _empty_tracker: Path) -> tuple[Installation, Bundle]:
    home = tmp_path_factory.mktemp("canary")
    shutil.copy(_empty_tracker, home / "mlflow.db")
    return begun(home)


@pytest.fixture
def canary_home(_exported: tuple[Installation, Bundle]) -> CanaryHome:
    """One home; each test gets a new canary."""
    return with_new_canary(*_exported)


@pytest.fixture
def home_of_another_question(_exported: tuple[Installation, Bundle]) -> CanaryHome:
    """A home whose canary predicts another column than the champion."""
    return with_new_canary(*_exported, label="load")


def tick(home: CanaryHome, cursor: str | None = None) -> dg.SensorResult:
    """Return the result of the sensor when Dagster's daemon evaluates it."""
    sensor = home.installation.defs.get_repository_def().get_sensor_def(f"{MODEL}_canary")
    context = dg.build_sensor_context(
        instance=home.installation.instance,
        resources={"platform": home.installation.platform},
        cursor=cursor,
    )
    result: Any = sensor(context)
    return result


def right(is_canary: bool, label: float, number: int) -> dict[str, Any]:
    return {}


def failing(is_canary: bool, label: float, number: int) -> dict[str, Any]:
    """A tenth of the canary's requests fail."""
    if is_canary and number % 10 < 4:
        return {"error": "RuntimeError: lost", "prediction": None}
    return {}


def slow(is_canary: bool, label: float, number: int) -> dict[str, Any]:
    return {"latency_us": 5000} if is_canary else {}


def shifted(is_canary: bool, label: float, number: int) -> dict[str, Any]:
    return {"prediction": [label + 6.0]} if is_canary else {}


@pytest.mark.parametrize(
    ("answer", "metric"), [(failing, "error_rate"), (slow, "latency_ms"), (shifted, "mae")]
)
def test_a_worse_canary_is_taken_back_within_one_tick(
    canary_home: CanaryHome, answer: Any, metric: str
) -> None:
    canary_home.log(600, answer)
    spec, platform = canary_home.spec, canary_home.installation.platform
    before = evidence(spec, platform)
    assert before.why_worse.startswith(f"worse than the champion by more than allowed: {metric}")
    shown = "\n".join(in_lines(spec, before))
    assert "It answers the requests of 40 % of the entities (machine)." in shown
    assert f"sensor {MODEL}_canary takes it back within 60 s" in shown
    releases, number = releases_of(platform), canary_home.canary.version
    with pytest.raises(NotPromotable, match=f"as canary it is worse than the champion .* allowed: {metric}"):
        promote(
            releases,
            MODEL,
            int(number),
            by=Person.unchecked("ada"),
            reason="it looks fine",
            rules=spec.rules,
            why_worse=lambda _: evidence(spec, platform).why_worse,
        )
    result = tick(canary_home)
    assert releases.standings(MODEL).canary is None
    (observation,) = result.asset_events
    assert observation.description == f"version {number} is taken back"
    assert any(name.startswith(metric) for name in observation.metadata)
    said = "\n".join(lines(releases.log.decisions(MODEL)))
    assert f"demoted     version {number} (" in said
    assert f" as canary, by {WATCH} (by rule): worse than the champion" in said
    assert f"by more than allowed: {metric}" in said
    held = releases.in_production(MODEL)
    assert held == canary_home.champion
    assert registry_of(platform).aliased(MODEL, "canary") is None
    # It does not come back by itself, and the next tick has nothing to do.
    newest = newest_data(releases, MODEL, canary_home.spec.rules)
    assert newest is None or newest.bundle_digest != canary_home.canary.bundle_digest
    decided = len(releases.log.decisions(MODEL))
    again = tick(canary_home, result.cursor)
    assert (again.asset_events, len(releases.log.decisions(MODEL))) == ([], decided)


def test_an_equal_canary_stays_and_goes_into_production_after_its_time(canary_home: CanaryHome) -> None:
    canary_home.log(600, right)
    first = tick(canary_home)
    number = canary_home.canary.version
    assert [one.description for one in first.asset_events] == [f"version {number} stays the canary"]
    second = tick(canary_home, first.cursor)
    assert second.asset_events == [], "a page does not need a row each minute"
    releases = releases_of(canary_home.installation.platform)
    promoted = promote(
        releases,
        MODEL,
        int(number),
        by=Person.unchecked("ada"),
        reason="it held",
        rules=canary_home.spec.rules,
    )
    assert promoted.alias == PRODUCTION
    assert "throughput has no canary" in str(tick(canary_home, second.cursor).skip_reason)


def test_a_log_never_promotes_and_rows_of_other_bundles_do_not_count(canary_home: CanaryHome) -> None:
    """Whoever writes to the log may say anything about the champion, or about another version."""

    def forged(is_canary: bool, label: float, number: int) -> dict[str, Any]:
        if is_canary:
            return {"bundle_digest": "0" * 64, "error": "RuntimeError: forged", "prediction": None}
        return {"error": "RuntimeError: forged", "prediction": None}

    canary_home.log(300, forged)
    releases = releases_of(canary_home.installation.platform)
    before = releases.log.decisions(MODEL)
    state = evidence(canary_home.spec, canary_home.installation.platform)
    assert (state.canary, state.why_worse) == (canary_home.canary, "")
    assert [one.canary_rows for one in state.compared] == [0, 0, 0]
    assert "the log has no request that the canary answered" in state.missing[0]
    tick(canary_home)
    assert releases.log.decisions(MODEL) == before


def test_a_request_of_a_failed_canary_counts_for_the_canary_alone(
    canary_home: CanaryHome,
) -> None:
    """Otherwise the champion would get rows that are slow, and errors of clients twice."""
    broken = {"error": "RuntimeError: lost", "prediction": None}
    canary_home.log(40, lambda is_canary, *_: broken if is_canary else {})
    canary_home.log(
        40,
        lambda is_canary, *_: (
            broken | {"latency_us": 9_000_000} | canary_home.as_champion if is_canary else {}
        ),
    )
    errors = evidence(canary_home.spec, canary_home.installation.platform).compared[0]
    assert errors.canary_rows > 0
    assert (errors.canary_rows + errors.champion_rows, errors.champion) == (40, 0.0)


def test_requests_without_the_primary_key_are_named(canary_home: CanaryHome) -> None:
    canary_home.log(60, lambda *_: {"row": b'{"load":0.5}'})
    state = evidence(canary_home.spec, canary_home.installation.platform)
    assert state.missing == (
        "60 rows do not name at, machine, a part of the primary key of the feature table: metrics of labels leave them "
        "out",
    )


def test_rows_whose_label_is_not_known_wait(canary_home: CanaryHome) -> None:
    canary_home.log(60, lambda *_: {"row": b'{"at":"2031-01-01T06:00:00Z","machine":"mill"}'})
    state = evidence(canary_home.spec, canary_home.installation.platform)
    assert state.missing == ("60 answered rows have no label in features/shifts yet",)
    assert [one.canary_rows + one.champion_rows for one in state.compared] == [60, 60, 0]


def deep(is_canary: bool, label: float, number: int) -> dict[str, Any]:
    further = b'{"at":"x","machine":"m","deep":' + b"[" * 1000 + b"]" * 1000 + b"}"
    return {"row": further} if number == 5 else failing(is_canary, label, number)


def no_object(is_canary: bool, label: float, number: int) -> dict[str, Any]:
    return {"row": b"[1]"} if number < 10 else failing(is_canary, label, number)


def ragged(is_canary: bool, label: float, number: int) -> dict[str, Any]:
    return failing(is_canary, label, number) or {"prediction": [label] * (3 if is_canary else 2)}


def end_of_time(is_canary: bool, label: float, number: int) -> dict[str, Any]:
    return {"row": b'{"at":"0001-01-01T00:00:00+05:00"}'} | failing(is_canary, label, number)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (deep, ""),
        (no_object, "rows are no JSON object: metrics of labels leave them out"),
        (ragged, ""),
        (end_of_time, "rows do not name machine"),
    ],
)
def test_odd_rows_do_not_stop_the_watch(canary_home: CanaryHome, answer: Any, said: str) -> None:
    canary_home.log(600, answer)
    assert said in str(tick(canary_home).skip_reason)
    assert releases_of(canary_home.installation.platform).standings(MODEL).canary is None


def test_a_torn_file_of_the_log_is_named_and_left_out(canary_home: CanaryHome) -> None:
    canary_home.log(600, failing)
    artifacts = canary_home.installation.platform.artifacts
    folder = day_folder(MODEL, datetime.now(UTC).date())
    with artifacts.create(folder, "torn.parquet") as file:
        file.write(b"PAR1 torn")
    said = str(tick(canary_home).skip_reason)
    artifacts.remove(folder, ["torn.parquet"])
    assert f"{artifacts.address(folder)}/torn.parquet is no log of requests" in said
    assert releases_of(canary_home.installation.platform).standings(MODEL).canary is None


def test_errors_decide_without_the_bundle(canary_home: CanaryHome) -> None:
    """Metrics of labels need it, those of requests do not."""
    canary_home.log(600, failing)
    platform = canary_home.installation.platform
    folder = platform.artifacts.folder(f"bundles/{canary_home.canary.bundle_digest}")
    away = folder.rename(folder.parent / "away")
    state = evidence(canary_home.spec, platform)
    shutil.rmtree(folder, ignore_errors=True)
    away.rename(folder)
    assert "metrics of labels are not compared: BundleMissing: " in state.missing[-1]
    assert state.worse is not None
    assert state.worse.metric == "error_rate"


def test_predictions_of_another_question_are_not_compared(home_of_another_question: CanaryHome) -> None:
    """Its classes may be others, so the champion's predictions would be read with the canary's."""
    home_of_another_question.log(600, failing)
    state = evidence(home_of_another_question.spec, home_of_another_question.installation.platform)
    assert [one.canary_rows > 0 for one in state.compared] == [True, True, False]
    assert "the champion answers another question than the canary (its label is made, that of" in " ".join(
        state.missing
    )


class _Away(FolderArtifacts):
    """Artifacts whose server does not answer."""

    def files(self, name: str) -> dict[str, int]:
        raise ArtifactsUnavailable("the store is away")


def test_while_one_watcher_counts_another_reads(canary_home: CanaryHome) -> None:
    spec, platform = canary_home.spec, canary_home.installation.platform
    canary_home.log(300, failing)
    counted = evidence(spec, platform)
    canary_home.log(600, failing)
    with platform.ledger.turn(f"canary/{MODEL}"):
        assert evidence(spec, platform).compared == counted.compared
    again = evidence(spec, platform)
    assert again.compared[0].canary_rows > counted.compared[0].canary_rows > 0


def test_a_tick_without_the_log_is_skipped_and_keeps_its_cursor(canary_home: CanaryHome) -> None:
    canary_home.log(600, failing)
    platform = canary_home.installation.platform
    there = platform.artifacts
    platform.__dict__["artifacts"] = _Away(canary_home.installation.settings.artifacts_folder)
    skipped = tick(canary_home, '{"canary": 1, "at": 0}')
    assert skipped.skip_reason is not None
    assert "not compared this time: the store is away" in str(skipped.skip_reason)
    assert skipped.cursor == '{"canary": 1, "at": 0}'
    platform.__dict__["artifacts"] = there
    assert releases_of(platform).standings(MODEL).canary is not None
    tick(canary_home, skipped.cursor)
    assert releases_of(platform).standings(MODEL).canary is None


def test_predictions_of_production_do_not_need_the_graph_of_the_canary(
    canary_home: CanaryHome,
) -> None:
    """onnxruntime fails for a row of each day. As production, the same version stops only these days, by name."""
    home, installation = canary_home, canary_home.installation
    store = bundles_of(installation.platform)
    exported = store.open(home.champion.bundle_digest)
    few = home.rows.filter(pl.col("load") <= home.rows["load"].median())
    contents = contents_of(
        few, ["load", "made_yesterday"], ["machine"], "regression", model=MODEL, label="made"
    )
    highest = float(contents.fitted.numeric[0].standardised(few["load"].cast(pl.Float64).to_numpy()).max())
    fragile = MatrixGraph(failing_above(3, highest + 1e-3).SerializeToString())
    broken, good = (
        Scorer(version=number, bundle_digest=one.digest, model=ServingModel.load(one.folder))
        for number, one in ((2, build_bundle(replace(contents, module=fragile), store)), (1, exported))
    )

    def predicted(production: Scorer, canary: Scorer) -> tuple[list[Any], dict[str, str]]:
        scorers = Scorers(production=production, canary=canary, canary_fault="")
        found = {day: scored_rows(home.spec, scorers, installation.main, day) for day in DAYS}
        return [one.data for one, _ in found.values()], {day: why for day, (_, why) in found.items() if why}

    frames, faults = predicted(good, broken)
    assert sum(frame.height for frame in frames) == home.rows.height
    assert all(frame["canary_prediction"].is_null().all() for frame in frames)
    assert list(faults) == DAYS
    assert all(one.startswith("version 2: onnxruntime cannot run") for one in faults.values())
    failed, _ = predicted(broken, good)
    assert all("version 2 cannot score" in str(one) for one in failed)


def test_the_rules_in_force_are_watched_whatever_defs_yaml_says(canary_home: CanaryHome) -> None:
    spec = canary_home.spec.model_copy(update={"release": NO_RULES})
    canary_home.log(600, failing)
    state = watch_canary(spec, canary_home.installation.platform)
    assert state.demotion is not None
    assert "error_rate" in state.demotion.reason
