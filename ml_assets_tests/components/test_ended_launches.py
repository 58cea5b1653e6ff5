"""Failed and refused runs: a line of the digest with the reason and the next command, and a notice at once."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.execution.execute_in_process_result import ExecuteInProcessResult

from ml_assets.components.assets.digest import declared_subjects
from ml_assets.components.metadata import ASKED_BY, ROOT_RUN, SCHEDULE, WILL_RETRY
from ml_assets.components.sensors.ended_runs import ended_launches, scheduled_shares, tell_failures
from ml_assets.pages.digest import Digest, ScheduledShare, bounds_of, digest_of, digest_page
from ml_assets_tests.components.installation import STAGES, Installation
from ml_assets_tests.components.readings_pipeline import FIRST, MODEL, READINGS, WINDOW, days
from ml_assets_tests.resources.webhook_receiver import Receiver, running_receiver
from resources.settings import Settings

LAST_DAY = days(WINDOW, start=1)[-1]
SCHEDULED = {SCHEDULE: f"train_{MODEL}_schedule"}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with running_receiver() as receiver:
        yield receiver


def _digest(installation: Installation) -> Digest:
    """The digest of the days around now, so that a test may run at midnight."""
    today = datetime.now(UTC).date()
    first, until = bounds_of(today)[0] - timedelta(days=1), bounds_of(today)[1] + timedelta(days=1)
    launches = ended_launches(installation.instance, first, until)
    return digest_of(installation.platform, declared_subjects(installation.defs), today, launches)


def test_a_refused_run_is_in_the_digest_with_reason_and_command(installation: Installation) -> None:
    installation.train(LAST_DAY)
    (line,) = _digest(installation).failed
    assert line.what.startswith(f"{MODEL} {LAST_DAY} was refused: ")
    assert "is missing" in line.what
    assert line.next == f"ml-assets launch {MODEL} {LAST_DAY}"
    assert _digest(installation).needs_a_person == 1
    page = digest_page(_digest(installation)).to_markdown()
    assert "Failed or refused" in page
    assert f"ml-assets launch {MODEL} {LAST_DAY}\n" in page


def test_a_failure_that_a_repetition_mended_is_no_line(installation: Installation) -> None:
    """A retry and the run that the failed-upstream sensor requests belong to the launch of the person."""
    for tag in (ROOT_RUN, ASKED_BY):
        refused = installation.train(LAST_DAY)
        assert len(_digest(installation).failed) == 1
        assert installation.run(READINGS, partition=str(FIRST), **{tag: refused.run_id}).success
        assert _digest(installation).failed == ()


def test_the_digest_counts_scheduled_trainings_that_completed(installation: Installation) -> None:
    _scheduled(installation, LAST_DAY)
    (share,) = _digest(installation).scheduled
    assert share.what == f"{MODEL}: 0 of 1 scheduled trainings completed (0%)"


def test_scheduled_trainings_count_once_with_their_repetitions(installation: Installation) -> None:
    """Two were refused. A run that the failed-upstream sensor requested mended the first."""
    first = _scheduled(installation, LAST_DAY)
    _scheduled(installation, LAST_DAY)
    now = datetime.now(UTC)
    since, until = now - timedelta(days=1), now + timedelta(days=1)
    (share,) = scheduled_shares(installation.instance, since, until)
    assert share == ScheduledShare(model=MODEL, completed=0, ended=2)
    assert installation.run(READINGS, partition=str(FIRST), **{ASKED_BY: first.run_id}).success
    (share,) = scheduled_shares(installation.instance, since, until)
    assert share == ScheduledShare(model=MODEL, completed=1, ended=2)
    assert share.says == f"{MODEL}: 1 of 2 scheduled trainings completed (50%)"
    assert scheduled_shares(installation.instance, until, until + timedelta(days=1)) == []


def _scheduled(installation: Installation, partition: str, **tags: str) -> ExecuteInProcessResult:
    job = installation.defs.resolve_job_def(f"train_{MODEL}")
    return job.execute_in_process(
        instance=installation.instance,
        partition_key=partition,
        tags=SCHEDULED | tags,
        raise_on_error=False,
        run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
    )


def _tell(installation: Installation, result: ExecuteInProcessResult) -> str:
    """Evaluate the sensor on a failed run; its reason."""
    context = dg.build_run_status_sensor_context(
        sensor_name="tell_failures",
        dagster_event=result.get_run_failure_event(),
        dagster_instance=installation.instance,
        dagster_run=result.dagster_run,
        resources={"platform": installation.platform},
        partition_key=None,
    ).for_run_failure()
    answer = tell_failures(context)
    assert isinstance(answer, dg.SkipReason)
    return answer.skip_message or ""


def test_a_failure_goes_to_the_webhook_at_once_and_once(tmp_path: Path, receiver: Receiver) -> None:
    settings = Settings.model_validate({"home": tmp_path, "author": "ada", "webhook": receiver.address})
    installation = Installation(tmp_path, settings=settings)
    refused = installation.run(*STAGES, partition=LAST_DAY)
    assert _tell(installation, refused) == "told the webhook"
    assert _tell(installation, refused) == "the failure was sent before"
    (notice,) = receiver.notices
    assert notice["text"] == f"{MODEL} {LAST_DAY} was refused: {notice['why']}"
    assert "is missing" in notice["why"]
    assert (notice["run"], notice["command"]) == (refused.run_id, f"ml-assets launch {MODEL} {LAST_DAY}")


def test_a_failure_that_dagster_repeats_is_not_sent(tmp_path: Path, receiver: Receiver) -> None:
    settings = Settings.model_validate({"home": tmp_path, "author": "ada", "webhook": receiver.address})
    installation = Installation(tmp_path, settings=settings)
    failed = installation.run(*STAGES, partition=LAST_DAY, **{WILL_RETRY: "true"})
    assert _tell(installation, failed) == "Dagster repeats the run"
    assert receiver.notices == []


def test_the_location_watches_failed_runs_by_default(installation: Installation) -> None:
    sensor = installation.defs.resolve_sensor_def("tell_failures")
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
