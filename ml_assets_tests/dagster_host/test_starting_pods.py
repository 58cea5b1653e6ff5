"""Obstacles of a run's pod, from answers of a real cluster: which are named, in which words, and which are none."""

import json
import re
from datetime import datetime, timedelta
from typing import Any

import pytest

from ml_assets.dagster_host.starting_pods import MAIN, obstacle_of
from ml_assets_tests.cluster.record_pods import RECORDED
from resources.launcher.kubernetes.attempt_objects import CONTAINER


def recorded(name: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]], datetime]:
    """Return pods and events of a scenario, with the container of a run, and the time of the newest event."""
    text = (RECORDED / f"{name}.json").read_text()
    found = json.loads(text.replace(f'"name": "{CONTAINER}"', f'"name": "{MAIN}"'))
    times = re.findall(r'"lastTimestamp": "([^"]+)"', text)
    return found["pods"], found["events"], max(map(datetime.fromisoformat, times))


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        (
            "image-missing",
            r"ImageUnavailable: the pod of this run on node\d .*nowhere:1.*images\.pullSecrets",
        ),
        ("image-name", r"ImageUnavailable: .*InvalidImageName.*images\.platform"),
        ("secret-missing", r'PodNotStarted: .*secret "nobody" not found.*secrets\.platform of the chart'),
        ("volume-missing", r"PodNotStarted: the pod of this run on node\d has not started: FailedMount"),
        ("no-node", r"Unschedulable: the pod of this run has no node: .*Insufficient cpu.*runs\.resources"),
        ("no-quota", r"Unschedulable: the quota has no room .*exceeded quota.*Raise quota of the chart"),
        ("refused-by-policy", r"PodNotStarted: the cluster refuses the pod of this run: .*hostPath"),
    ],
)
def test_an_obstacle_is_named_with_its_remedy_after_a_minute(scenario: str, words: str) -> None:
    pods, events, now = recorded(scenario)
    found = obstacle_of(pods, events, lambda _: events, now + timedelta(seconds=45))
    assert found is not None
    assert re.search(words, found.said), found.said


@pytest.mark.parametrize("scenario", ["running", "pulling", "succeeded", "failed"])
def test_a_pod_that_needs_no_help_has_no_obstacle(scenario: str) -> None:
    pods, events, now = recorded(scenario)
    assert obstacle_of(pods, events, lambda _: events, now + timedelta(seconds=45)) is None


def test_an_image_that_failed_once_has_time() -> None:
    pods, events, now = recorded("image-failed-once")
    assert obstacle_of(pods, events, lambda _: events, now) is None
