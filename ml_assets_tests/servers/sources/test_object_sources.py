"""Files and Delta tables of a real S3 server as sources: formats, half-written files, versions, credentials, outages.

Each fault ends in an error with a remedy, and main holds what it held before.
"""

import re
import threading
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest
from deltalake import DeltaTable

from ml_assets.data.sources.file_source import FileChanged, FileReader
from ml_assets.data.sources.protocol import SourceAway, SourceReader, SourceRefused, Span
from ml_assets_tests.components.installation import failure_of
from ml_assets_tests.servers.sources.conftest import Declare
from ml_assets_tests.servers.sources.object_warehouse import (
    ACCESS,
    BUCKET,
    SECRET_ENV,
    ObjectWarehouse,
    encoded,
)
from ml_assets_tests.sources.landed_sales import reader_of, require_every_day
from ml_assets_tests.sources.sales import DAYS, SALES, rows

BY_DAY = {"kind": "s3", "path": f"s3://{BUCKET}/sales/%Y/%m/%d/*.parquet", **ACCESS}
DELTA = {"kind": "delta", "path": f"s3://{BUCKET}/sales", **ACCESS}
FIRST_DAY = Span(date.fromisoformat(DAYS[0]), date.fromisoformat(DAYS[1]))


def _put_days(bucket: ObjectWarehouse, suffix: str = "parquet") -> None:
    for day in DAYS:
        folder = f"sales/{day.replace('-', '/')}"
        bucket.put_frame(f"{folder}/a.{suffix}", rows(day)[:2])
        bucket.put_frame(f"{folder}/b.{suffix}", rows(day)[2:])


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
@pytest.mark.parametrize("by_day", [True, False])
def test_each_format_lands_the_same_rows_from_a_bucket(
    declare: Declare, bucket: ObjectWarehouse, suffix: str, by_day: bool
) -> None:
    if by_day:
        _put_days(bucket, suffix)
        path = f"s3://{BUCKET}/sales/%Y/%m/%d/*.{suffix}"
    else:
        bucket.put_frame(f"all/sales-1.{suffix}", rows(*DAYS)[::2])
        bucket.put_frame(f"all/sales-2.{suffix}", rows(*DAYS)[1::2])
        bucket.put(f"all/other.{suffix}", b"not of this table")
        path = f"s3://{BUCKET}/all/sales-*.{suffix}"
    installation = declare({"kind": "s3", "path": path, **ACCESS})
    result = installation.run(SALES, partition=DAYS[0], last=DAYS[4])
    assert result.success, failure_of(result)
    require_every_day(installation)
    if by_day:
        assert reader_of(installation, SourceReader).latest() == date.fromisoformat(DAYS[-1])


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_a_half_written_object_fails_its_day_until_it_is_whole(
    declare: Declare, bucket: ObjectWarehouse, suffix: str
) -> None:
    _put_days(bucket, suffix)
    installation = declare({"kind": "s3", "path": f"s3://{BUCKET}/sales/%Y/%m/%d/*.{suffix}", **ACCESS})
    assert installation.run(SALES, partition=DAYS[1]).success
    before = installation.main.digests(SALES)
    half = f"sales/{DAYS[1].replace('-', '/')}/b.{suffix}"
    whole = encoded(rows(DAYS[1])[2:], suffix)
    bucket.put(half, whole[: len(whole) * 2 // 3])
    said = failure_of(installation.run(SALES, partition=DAYS[0], last=DAYS[2]))
    assert f"s3://{BUCKET}/{half}" in said
    assert "half written" in said
    assert installation.main.keys(SALES) == DAYS[:3]
    assert installation.main.digests(SALES)[DAYS[1]] == before[DAYS[1]]
    assert "this partition again" in said or "again, in one step" in said
    bucket.put(half, whole)
    assert installation.run(SALES, partition=DAYS[1]).success


def test_an_object_that_changes_while_it_is_read_is_refused(
    declare: Declare, bucket: ObjectWarehouse
) -> None:
    """It changes between the listing and the read; the server compares the ETag of the listing."""
    _put_days(bucket)
    reader = reader_of(declare(BY_DAY), SourceReader)
    assert isinstance(reader, FileReader)
    client: Any = reader._client  # pyright: ignore[reportPrivateUsage]
    key = f"sales/{DAYS[0].replace('-', '/')}/b.parquet"

    def write_first(**_: Any) -> None:
        bucket.put_frame(key, rows(DAYS[0])[:2])

    client.meta.events.register("before-send.s3.GetObject", write_first)
    with pytest.raises(FileChanged, match=re.escape(key)):
        reader.read(FIRST_DAY)
    client.meta.events.unregister("before-send.s3.GetObject", write_first)
    assert reader.read(FIRST_DAY).frame.height == 4


def test_versions_of_a_delta_table_in_a_bucket(declare: Declare, bucket: ObjectWarehouse) -> None:
    """The newest and a pinned version are read; after a vacuum the old version is refused by its number."""
    path = bucket.write_delta("sales", rows(*DAYS)[::-1])
    bucket.write_delta("sales", rows(*DAYS), mode="overwrite")
    for version in ({}, {"version": 0}):
        installation = declare(DELTA | version)
        result = installation.run(SALES, partition=DAYS[0], last=DAYS[4])
        assert result.success, failure_of(result)
        require_every_day(installation)
    before = installation.main.digests(SALES)
    table = DeltaTable(path, storage_options=bucket.options)
    assert table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    said = failure_of(declare(DELTA | {"version": 0}).run(SALES, partition=DAYS[0]))
    assert "(version 0) are gone" in said
    assert "a vacuum deleted them" in said
    said = failure_of(declare(DELTA | {"version": 99}).run(SALES, partition=DAYS[0]))
    assert "no version 99: " in said
    assert installation.main.digests(SALES) == before
    assert declare(DELTA).run(SALES, partition=DAYS[0]).success


def _wrong_secret(bucket: ObjectWarehouse, patch: pytest.MonkeyPatch) -> None:
    patch.setenv(SECRET_ENV, "a-wrong-secret")


def _no_variable(bucket: ObjectWarehouse, patch: pytest.MonkeyPatch) -> None:
    patch.delenv(SECRET_ENV)


def _away(bucket: ObjectWarehouse, patch: pytest.MonkeyPatch) -> None:
    bucket.server.kill()


Break = Callable[[ObjectWarehouse, pytest.MonkeyPatch], None]


@pytest.mark.parametrize("source", [BY_DAY, DELTA], ids=["s3", "delta"])
@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (_wrong_secret, "credentials"),
        (_no_variable, f"the environment variable {SECRET_ENV} is not set"),
        (_away, "did not answer for 0.5 s"),
    ],
)
def test_a_fault_of_the_storage_is_named_and_changes_nothing(
    declare: Declare,
    bucket: ObjectWarehouse,
    monkeypatch: pytest.MonkeyPatch,
    source: dict[str, Any],
    break_it: Break,
    said: str,
) -> None:
    if source is DELTA:
        bucket.write_delta("sales", rows(*DAYS))
    else:
        _put_days(bucket)
    installation = declare(source)
    assert installation.run(SALES, partition=DAYS[0]).success
    before = installation.main.digests(SALES)
    with monkeypatch.context() as patched:
        break_it(bucket, patched)
        broken = declare(source, patience_seconds=0.5)
        found = failure_of(broken.run(SALES, partition=DAYS[0], last=DAYS[2]))
        assert said in found
        assert "a-wrong-secret" not in found
        if said != f"the environment variable {SECRET_ENV} is not set":
            with pytest.raises(SourceAway if break_it is _away else SourceRefused) as raised:
                reader_of(broken, SourceReader).check()
            assert isinstance(raised.value, SourceAway) == (break_it is _away)
    assert installation.main.digests(SALES) == before
    if bucket.server.process is None:
        bucket.server.start()
    assert installation.run(SALES, partition=DAYS[2]).success


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (BY_DAY | {"path": "s3://no-such-bucket/%Y-%m-%d.csv"}, "NoSuchBucket"),
        (BY_DAY | {"path": f"s3://{BUCKET}/nothing/%Y-%m-%d.csv"}, "no file matches"),
        (DELTA | {"path": "s3://no-such-bucket/sales"}, "NoSuchBucket"),
        (DELTA | {"path": f"s3://{BUCKET}/nothing"}, "there is no Delta table at"),
    ],
)
def test_a_missing_bucket_or_prefix_is_named(
    declare: Declare, bucket: ObjectWarehouse, source: dict[str, Any], said: str
) -> None:
    found = failure_of(declare(source, patience_seconds=0.5).run(SALES, partition=DAYS[0]))
    assert said in found
    assert re.search("(check|correct) source.path", found, re.IGNORECASE)


def test_an_outage_of_the_storage_is_waited_for(declare: Declare, bucket: ObjectWarehouse) -> None:
    _put_days(bucket)
    bucket.write_delta("delta", rows(*DAYS))
    for source in (BY_DAY, DELTA | {"path": f"s3://{BUCKET}/delta"}):
        reader = reader_of(declare(source), SourceReader)
        bucket.server.kill()
        back = threading.Timer(0.5, bucket.server.start)
        back.start()
        assert reader.latest() == date.fromisoformat(DAYS[-1])
        back.join()
