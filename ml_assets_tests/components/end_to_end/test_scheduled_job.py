"""The job of a schedule: one run from the sources to the registry."""

from collections import Counter

from ml_assets_tests.components.installation import (
    STAGES,
    Installation,
    facts_of,
    failure_of,
    key_of,
    versions,
)
from ml_assets_tests.components.readings_pipeline import FEATURES, MODEL, READINGS, WINDOW, Source, days

(DAY,) = days(1, start=WINDOW + 1)
"""The day after those of `Installation.with_tables(1)`."""


def test_one_run_makes_each_table_once_and_trains(shared_installation: Installation) -> None:
    installation = shared_installation.with_tables(1)
    result = installation.run_job(DAY)
    assert result.success
    assert [event.step_key for event in result.all_events if event.is_step_success] == [
        "datasets__readings",
        "features__shifts",
        "features__shifts__leakage",
        *(f"{MODEL}.{step}" for step in ("validate_inputs", "snapshot", "train", "evaluate", "register")),
    ]
    made = Counter((event.asset_key, event.partition) for event in result.get_asset_materialization_events())
    assert made == {(key_of(name), DAY): 1 for name in (READINGS, FEATURES, *STAGES)}
    for table in (READINGS, FEATURES):
        assert versions(result, table) == {DAY: installation.main.digests(table)[DAY]}
    # The page of the training set names every table behind it.
    rows = [record.data for record in facts_of(result, DAY)[STAGES[0]]["inputs"].records]
    assert [(row["table"], row["partitions"], row["passed"], row["stale"]) for row in rows] == [
        (FEATURES, WINDOW, WINDOW, 0),
        (READINGS, WINDOW + 1, WINDOW + 1, 0),
    ]


def test_a_rejected_day_ends_the_job_before_anything_is_built_from_it(
    shared_installation: Installation, source: Source
) -> None:
    source.spoiled[DAY] = lambda rows: rows.drop("load")
    result = shared_installation.with_tables(1).run_job(DAY)
    assert not result.success
    assert "rejected and not merged into main" in failure_of(result)
    assert {event.step_key for event in result.all_events if event.is_step_start} == {"datasets__readings"}
