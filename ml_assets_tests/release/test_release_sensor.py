"""Asset `<model>/production` shows what people decided, and each version that waits is told about once."""

from typing import Any

import dagster as dg
import pytest
from pydantic import ValidationError

from ml_assets.components import TrainingPipeline
from ml_assets.components.sensors.models import production_asset, release_sensor
from ml_assets.model.release.bundle_store import Bundle
from ml_assets.model.release.promotion import promote
from ml_assets.model.release.releases import Releases
from ml_assets.model.release.rollback import demote, rollback
from ml_assets.model.release.rules import deciding_as_json
from ml_assets_tests.components.readings_pipeline import PIPELINE
from ml_assets_tests.release.conftest import Evaluate
from ml_assets_tests.resources.ledger_writer import with_account
from ml_assets_tests.resources.oidc_issuer import running_issuer
from ml_assets_tests.resources.webhook_receiver import Receiver
from resources.ledger import Person
from resources.platform import Platform
from resources.settings import Settings
from resources.web.webhook import send

SPEC = TrainingPipeline.spec_type.model_validate(PIPELINE | {"name": "small", "release": {"approval": {}}})
GATES = deciding_as_json(SPEC.rules.evaluation or {})
PAGE = production_asset(SPEC, dg.AssetKey(["small", "registered_model"])).key


class Daemon:
    """Ticks of the sensor, with the cursor kept between them."""

    def __init__(self, platform: Platform) -> None:
        self.instance = dg.DagsterInstance.ephemeral()
        self._platform = platform
        self._sensor = release_sensor(SPEC, PAGE)
        self._cursor: str | None = None

    def tick(self) -> list[tuple[str, dict[str, Any]]]:
        """Return description and metadata of each event."""
        context = dg.build_sensor_context(
            self.instance, cursor=self._cursor, resources={"platform": self._platform}
        )
        answer = self._sensor(context)
        assert isinstance(answer, dg.SensorResult)
        self._cursor = answer.cursor
        return [
            (event.description or "", {name: value.value for name, value in event.metadata.items()})
            for event in answer.asset_events
        ]


@pytest.fixture
def platform(platform: Platform, evaluate: Evaluate, two_versions: tuple[Bundle, Bundle]) -> Platform:
    """The platform, with both versions evaluated by the gates of the pipeline."""
    for bundle in two_versions:
        evaluate(bundle, gates=GATES)
    return platform


def test_each_waiting_version_is_told_about_once(
    platform: Platform,
    receiver: Receiver,
    evaluate: Evaluate,
    two_versions: tuple[Bundle, Bundle],
) -> None:
    daemon = Daemon(platform)
    first = daemon.tick()
    assert [said for said, _ in first] == [
        "small version 2 waits for an approval",
        "small version 1 waits for an approval",
    ]
    assert first[0][1]["told"] == "the webhook"
    assert first[0][1]["next"] == "ml-assets approve small 2 --reason '…'"
    assert [(one["model"], one["version"]) for one in receiver.notices] == [("small", 2), ("small", 1)]
    assert daemon.tick() == []
    daemon._cursor = None  # somebody resets the sensor's cursor in Dagster's pages
    assert daemon.tick() == []
    evaluate(two_versions[1], told="again", gates=GATES)
    assert [said for said, _ in daemon.tick()] == ["small version 2 waits for an approval"]
    assert len(receiver.notices) == 3


def test_a_webhook_that_refuses_is_shown_and_fails_nothing(
    platform: Platform, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resources.web.webhook.PAUSE_SECONDS", 0)
    daemon = Daemon(platform)
    receiver.status = 500
    told = [facts["told"] for _, facts in daemon.tick()]
    assert told == ["the webhook at 127.0.0.1 did not take it in 3 tries (HTTPError 500)"] * 2
    assert "secret-path" not in str(told)
    assert receiver.tries == 6
    receiver.status = 200
    assert daemon.tick() == []


def test_production_shows_promotions_rollbacks_and_demotions(
    platform: Platform, releases: Releases, evaluate: Evaluate, two_versions: tuple[Bundle, Bundle]
) -> None:
    daemon = Daemon(platform)
    daemon.tick()
    promote(releases, "small", 1, by=Person.unchecked("ada"), reason="the first")
    ((said, facts),) = daemon.tick()
    assert said == "version 1 is in production: promoted"
    assert (facts["version"], facts["by"], facts["reason"]) == ("1", "ada", "the first")
    assert facts["data"] == "2013-01-01 to 2013-01-03"
    assert facts["report"].startswith("/reports/small/2013-12-31/")
    assert daemon.tick() == []
    evaluate(two_versions[1], told="beside version 1", gates=GATES)
    daemon.tick()
    promote(releases, "small", 2, by=with_account(platform.ledger, "bob"), reason="better")
    ((said, facts),) = daemon.tick()
    assert (said, facts["by"]) == ("version 2 is in production: promoted", "bob (checked by token)")
    rollback(releases, "small", by=with_account(platform.ledger, "ada"), reason="slow")
    assert [said for said, _ in daemon.tick()] == ["version 1 is in production: rolled back"]
    demote(releases, "small", by=with_account(platform.ledger, "ada"), reason="wrong prices")
    ((said, facts),) = daemon.tick()
    assert said == "nothing is in production: version 1 was demoted"
    assert facts["reason"] == "wrong prices"


@pytest.mark.parametrize("address", ["file:///etc/passwd", "http://[", "https://", "http://h:x/", "hooks"])
def test_a_webhook_without_http_is_refused_where_it_is_set(address: str) -> None:
    with pytest.raises(ValidationError, match="a webhook has an address http"):
        Settings(webhook=address)


def test_a_webhook_that_redirects_took_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resources.web.webhook.PAUSE_SECONDS", 0)
    with running_issuer() as elsewhere:
        elsewhere.documents["/hook"] = f"{elsewhere.address}/"
        elsewhere.documents["/"] = {}
        assert "did not take it in 3 tries (HTTPError" in send(f"{elsewhere.address}/hook", {})
