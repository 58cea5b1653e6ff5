"""A topic of a real Kafka as a source: days by event time, dead letters, repeated and late messages, lost topics."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pytest
import yaml
from dagster.components.testing import create_defs_folder_sandbox

from deployment.testbed.servers import Servers
from ml_assets.components import Dataset, declarations
from ml_assets.components.declarations import in_one_line
from ml_assets.components.metadata import RANGE_END, RANGE_START, declared_tables
from ml_assets.dagster_host.steps import step_values
from ml_assets.data.sources.preview import preview
from ml_assets.data.sources.protocol import ReadPartition, SourceTable
from ml_assets.data.tables.history.log import unaudited
from ml_assets.data.tables.manifest import Reconciliation
from ml_assets.data.tables.reader import TableReader
from ml_assets.extras.streams.kafka_source import KafkaReader
from ml_assets_tests.cli.terminal import Terminal
from ml_assets_tests.components.installation import (
    QUIET,
    Installation,
    component,
    failure_of,
    key_of,
    materialized,
)
from ml_assets_tests.servers.running_servers import RunningServers
from ml_assets_tests.servers.sources import kafka_kills
from ml_assets_tests.servers.sources.conftest import Declare
from ml_assets_tests.servers.sources.streams import SERVERS_ENV, Stream, message, messages
from ml_assets_tests.sources.hourly_sales import HOURLY, HOURS, require_every_hour, rows_of, span_of
from ml_assets_tests.sources.landed_sales import reader_of, require_every_day
from ml_assets_tests.sources.sales import DATASET, DAYS, SALES, declared_in, rows
from resources.platform import Platform
from resources.settings import Settings

AFTER = message(**rows("2024-03-13").row(1, named=True))
"""A sale on the day after the table's last one, after which all its days are complete."""


def _facts(result: Any, day: str) -> dict[str, Any]:
    """Return the metadata on a day's page; tables as lists of rows."""
    metadata = materialized(result, SALES)[day].metadata
    return {
        name: [dict(row.data) for row in one.records] if isinstance(one, dg.TableMetadataValue) else one.value
        for name, one in metadata.items()
    }


def _requested(installation: Installation) -> list[tuple[str, str]]:
    """Return the first and last day of each range that the sensor requests."""
    sensor = installation.defs.get_repository_def().get_sensor_def("sales_new_data")
    resources = {"platform": installation.platform, "tables": declared_tables(installation.defs)}
    context = dg.build_sensor_context(instance=installation.instance, resources=resources)
    answer: Any = sensor(context)
    return [(one.tags[RANGE_START], one.tags[RANGE_END]) for one in answer.run_requests or ()]


def test_a_topic_declared_in_a_file_lands_bit_for_bit(stream: Stream, tmp_path: Path) -> None:
    """Through a `defs.yaml`, with days by the time zone of New York and rows spread over two partitions."""
    stream.make(partitions=2)
    sent = rows(*DAYS).sample(fraction=1, shuffle=True, seed=1)
    stream.send([*messages(sent[::2]), AFTER], 0)
    stream.send([*messages(sent[1::2]), AFTER], 1)
    text = yaml.safe_dump(
        {"type": "ml_assets.components.Dataset", "attributes": DATASET | {"source": stream.source}}
    )
    with create_defs_folder_sandbox() as sandbox:
        folder = sandbox.defs_folder_path / "shop"
        folder.mkdir()
        (folder / "defs.yaml").write_text(text)
        with in_one_line(sandbox.defs_folder_path), sandbox.build_component_tree() as tree:
            declared = tree.build_defs()
    platform = Platform(Settings(home=tmp_path / "home"))
    parts: dict[str, Any] = {
        "platform": platform,
        "tables": declared_tables(declared),
        "io_manager": step_values,
    }
    defs = dg.Definitions.merge(declared, dg.Definitions(resources=parts))
    result = defs.resolve_implicit_global_asset_job_def().execute_in_process(
        run_config=QUIET,
        instance=dg.DagsterInstance.ephemeral(),
        asset_selection=[key_of(SALES)],
        tags={RANGE_START: DAYS[0], RANGE_END: DAYS[4]},
        raise_on_error=False,
    )
    assert result.success, failure_of(result)
    reader = TableReader.at(platform.lake)
    for day in DAYS:
        assert reader.scan(SALES, [day]).collect().equals(rows(day))
    facts = _facts(result, DAYS[4])
    assert facts["stream watermark"] == "2024-03-13T15:30:00+00:00"
    assert facts["source watermark"] == "2024-03-13T04:00:00+00:00"  # the end of the partition in New York
    assert (facts["messages landed"], facts["dead letters"], facts["newest dead letters"]) == (17, 0, "none")


def test_hours_of_utc_land_and_a_late_message_reopens_its_hour(declare: Declare, stream: Stream) -> None:
    stream.make(partitions=1)
    stream.send([*messages(rows(*DAYS)), AFTER])
    require_every_hour(installation := declare(stream.source, **HOURLY))
    reader = reader_of(installation, KafkaReader)
    assert reader.latest() == datetime(2024, 3, 13, 14, tzinfo=UTC)
    manifests = installation.main.manifests(SALES, installation.main.keys(SALES))
    read = {
        span_of(hour): ReadPartition(one.watermark, one.source_version)
        for hour, one in zip(HOURS, manifests.values(), strict=True)
    }
    assert reader.look(read, ()).changed == frozenset()
    [sale] = rows_of(HOURS[12]).rows(named=True)
    stream.send([message(**sale | {"sale": 7})])
    reader.land()
    assert reader.look(read, ()).changed == {span_of(HOURS[12])}
    assert installation.run(SALES, partition="2024-03-08T17").success
    assert installation.main.scan(SALES, ["2024-03-08T17"]).collect()["sale"].to_list() == [7, sale["sale"]]


def test_a_topic_that_landed_by_days_is_read_by_hours(declare: Declare, stream: Stream) -> None:
    stream.make(partitions=1)
    stream.send([*messages(rows(*DAYS)), AFTER])
    days = declare(stream.source, contract=HOURLY["contract"])
    assert days.run(SALES, partition=DAYS[0], last=DAYS[4]).success
    hours = declare(stream.source, **HOURLY)
    reader = reader_of(hours, KafkaReader)
    for hour in HOURS[:30]:
        assert reader.read(span_of(hour)).frame.equals(rows_of(hour))


@pytest.fixture
def login(servers: RunningServers, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Keys of a section that reads from the listener with TLS and a password."""
    monkeypatch.setenv(SERVERS_ENV, servers.env["KAFKA_SECURE_SERVERS"])
    for name in ("KAFKA_CA_FILE", "KAFKA_USERNAME", "KAFKA_PASSWORD"):
        monkeypatch.setenv(name, servers.env[name])
    names = {
        "ca_file_env": "KAFKA_CA_FILE",
        "username_env": "KAFKA_USERNAME",
        "password_env": "KAFKA_PASSWORD",
    }
    return {"tls": True, **names}


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"])
def test_a_topic_is_read_with_tls_and_a_password(
    declare: Declare, stream: Stream, login: dict[str, Any], mechanism: str
) -> None:
    stream.make(partitions=2)
    stream.send([*messages(rows(*DAYS)), AFTER])
    installation = declare(stream.source | login | {"mechanism": mechanism})
    result = installation.run(SALES, partition=DAYS[0], last=DAYS[4])
    assert result.success, failure_of(result)
    require_every_day(installation)


@pytest.mark.parametrize(
    ("changes", "password", "said"),
    [
        ({}, "wrong-password", "Check the user's rights, and the variables that the source section names"),
        ({"ca_file_env": None}, None, "let the variable that source.ca_file_env names hold the path"),
        ({"tls": False, "ca_file_env": None}, None, "If it runs, it may expect connections with source.tls"),
    ],
)
def test_a_login_that_does_not_fit_is_refused_with_its_remedy(
    declare: Declare,
    stream: Stream,
    login: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    password: str | None,
    said: str,
) -> None:
    stream.make(partitions=1)
    stream.send(messages(rows(DAYS[0])))
    if password:
        monkeypatch.setenv("KAFKA_PASSWORD", password)
    installation = declare(stream.source | login | changes, patience_seconds=5.0)
    found = failure_of(installation.run(SALES, partition=DAYS[0]))
    assert said in found
    assert password is None or password not in found


def test_poison_messages_are_dead_letters_and_the_others_land(
    declare: Declare, stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.make(partitions=1)
    sale = rows(DAYS[0]).row(0, named=True)
    poison = [
        b"not json",
        None,
        message(**sale | {"units": "two"}),
        message(**{name: value for name, value in sale.items() if name != "gift"}),
        message(**sale | {"sold_at": None}),
        message(**sale | {"sold_at": datetime.now(UTC) + timedelta(days=400)}),
        b'"' + b"long" * 50_000 + b'"',
    ]
    stream.send([*messages(rows(DAYS[0])), *poison, *messages(rows(DAYS[1])), AFTER])
    installation = declare(stream.source)
    assert (
        len(reader_of(installation, KafkaReader).check()) == len(poison) - 1
    )  # it does not look at the clock
    result = installation.run(SALES, partition=DAYS[0], last=DAYS[1])
    assert result.success, failure_of(result)
    for day in DAYS[:2]:
        assert installation.main.scan(SALES, [day]).collect().equals(rows(day))
    facts = _facts(result, DAYS[1])
    assert (facts["messages landed"], facts["dead letters"]) == (7, len(poison))
    shown = {row["offset"]: row for row in facts["newest dead letters"]}
    assert {offset: row["reason"] for offset, row in shown.items()} == {
        3: "the message is not valid JSON in UTF-8",
        4: "the message has no value",
        5: "'units' is a text, not int16",
        6: "column 'gift' is missing",
        7: "the event time 'sold_at' is null",
        8: "its event time is in the future",
        9: "the message is a text, not an object",
    }
    assert shown[3]["message"] == "not json"
    assert shown[9]["bytes"] == 200_002
    assert len(shown[9]["message"]) == 200
    declared_in(tmp_path / "defs", sales={"source": stream.source})
    monkeypatch.setattr(declarations, "DEFS", tmp_path / "defs")
    installation.settings.dagster_home.mkdir()  # this installation runs in memory; a command finds its home made
    first, *lines = Terminal(installation.settings.home)(
        "source", "dead-letters", SALES, "--newest", "3"
    ).out.splitlines()
    assert first.startswith(f"{SALES}: {len(poison)} dead letters: ")
    assert [one.split(":")[0].strip() for one in lines] == [f"partition 0 offset {n}" for n in (9, 8, 7)]
    assert "(200,002 bytes: '\"longlong" in lines[0]
    reader = reader_of(installation, KafkaReader)
    assert max(len(one["value"] or b"") for one in reader.log.newest_dead_letters(reader.landed, 99)) == 2**16
    again = installation.run(SALES, partition=DAYS[1])
    assert _facts(again, DAYS[1])["dead letters"] == len(poison)


def test_a_preview_suggests_the_contract_and_lands_nothing(declare: Declare, stream: Stream) -> None:
    stream.make(partitions=2)
    stream.send([b"poison", *messages(rows(DAYS[0]))], 0)
    stream.send([None, *messages(rows(DAYS[1]))], 1)
    spec = declare(stream.source)._components[0].spec  # pyright: ignore[reportPrivateUsage]
    without = SourceTable(name=SALES, contract=None)
    found = preview(spec.source, without, declare(stream.source).platform)
    assert found.contract["event_time"] == "sold_at"
    types = {one["name"]: one["dtype"] for one in found.contract["columns"]}
    assert types == {one["name"]: one["dtype"] for one in DATASET["contract"]["columns"]} | {"units": "int64"}
    assert found.rows["sale"].sort().to_list() == rows(*DAYS[:2])["sale"].to_list()
    assert reader_of(declare(stream.source), KafkaReader).landed.state is None


def test_dead_letters_of_a_sensitive_table_show_no_bytes(declare: Declare, stream: Stream) -> None:
    stream.make(partitions=1)
    stream.send([b'{"product": "hunter2"}', *messages(rows(DAYS[0]))])
    columns = [
        one | ({"sensitive": True} if one["name"] == "product" else {})
        for one in DATASET["contract"]["columns"]
    ]
    installation = declare(stream.source, contract=DATASET["contract"] | {"columns": columns})
    result = installation.run(SALES, partition=DAYS[0])
    assert result.success, failure_of(result)
    assert "hunter2" not in str(materialized(result, SALES)[DAYS[0]].metadata)
    assert _facts(result, DAYS[0])["newest dead letters"][0]["message"] == "(hidden)"


def test_repeated_messages_add_no_row(declare: Declare, stream: Stream) -> None:
    stream.make(partitions=2)
    sent = messages(rows(DAYS[0]))
    stream.send([*sent, *sent], 0)
    installation = declare(stream.source)
    assert installation.run(SALES, partition=DAYS[0]).success
    digest = installation.main.digests(SALES)[DAYS[0]]
    stream.send(sent, 1)
    assert installation.run(SALES, partition=DAYS[0]).success
    assert installation.main.scan(SALES, [DAYS[0]]).collect().equals(rows(DAYS[0]))
    assert installation.main.digests(SALES)[DAYS[0]] == digest
    counts = installation.main.manifest(SALES, DAYS[0]).reconciliation
    assert counts == Reconciliation(returned=9, repeated=6)
    stream.send([message(**rows(DAYS[0]).row(0, named=True) | {"price": 9.0})], 1)
    assert "sale" in failure_of(
        installation.run(SALES, partition=DAYS[0])
    )  # two rows of one key: the contract rules
    assert installation.main.digests(SALES)[DAYS[0]] == digest


def test_late_events_reopen_their_day_alone(declare: Declare, stream: Stream) -> None:
    """A day of delay: two of three sales of a day come after the next day is complete."""
    stream.make(partitions=2)
    late = rows(DAYS[1])[1:]
    stream.send(messages(pl.concat([rows(DAYS[0]), rows(DAYS[1])[:1]])))
    installation = declare(stream.source | {"watch": {}, "reopen_days": 3})
    assert _requested(installation) == []  # no event tells that the first day is over by an hour
    stream.send(messages(rows(DAYS[2])))
    assert _requested(installation) == [(DAYS[0], DAYS[1])]
    assert installation.run(SALES, partition=DAYS[0], last=DAYS[1]).success
    assert _requested(installation) == []
    stream.send([*messages(rows(DAYS[3])), *messages(late)], 1)
    assert _requested(installation) == [
        (DAYS[1], DAYS[1])
    ]  # the first partition has not passed the day after
    before = installation.main.digests(SALES)
    assert installation.run(SALES, partition=DAYS[1]).success
    assert installation.main.scan(SALES, [DAYS[1]]).collect().equals(rows(DAYS[1]))
    assert installation.main.digests(SALES)[DAYS[0]] == before[DAYS[0]]
    assert _requested(installation) == []

    stream.send([message(**rows("2024-03-20").row(1, named=True))], 0)
    stream.send([message(**rows("2024-03-20").row(2, named=True))], 1)
    assert _requested(installation) == [(DAYS[2], DAYS[4])]
    stream.send([message(**rows(DAYS[0]).row(0, named=True) | {"sale": 1})])
    assert _requested(installation) == [(DAYS[2], DAYS[4])]
    assert reader_of(installation, KafkaReader).landed.state.dead == {"late": 1}  # pyright: ignore[reportOptionalMemberAccess]


def test_a_day_that_the_stream_has_not_passed_waits(declare: Declare, stream: Stream) -> None:
    stream.make(partitions=1)
    installation = declare(stream.source)
    assert "no watermark yet" in failure_of(installation.run(SALES, partition=DAYS[0]))
    stream.send(messages(rows(DAYS[0])))
    assert "its watermark is 2024-03-09T03:59:59" in failure_of(installation.run(SALES, partition=DAYS[1]))
    stream.send(messages(rows(DAYS[2])))
    assert installation.run(SALES, partition=DAYS[1]).success
    assert installation.main.scan(SALES, [DAYS[1]]).collect().is_empty()


def test_landed_rows_outlive_the_topic_and_a_new_one_continues(declare: Declare, stream: Stream) -> None:
    stream.make(partitions=1)
    stream.send(messages(rows(*DAYS[:3])))
    installation = declare(stream.source)
    assert installation.run(SALES, partition=DAYS[0]).success
    stream.delete()
    said = failure_of(installation.run(SALES, partition=DAYS[1]))
    assert f"no topic {stream.topic}: correct source.topic" in said
    stream.make(partitions=1)
    stream.send(messages(rows(*DAYS[2:])))  # as many messages as before, of which some come again
    before = installation.main.digests(SALES)
    said = failure_of(installation.run(SALES, partition=DAYS[1]))
    assert "set source.generation: 2" in said
    assert installation.main.digests(SALES) == before
    again = installation.declared_as([component(Dataset, DATASET, source=stream.source | {"generation": 2})])
    result = again.run(SALES, partition=DAYS[0], last=DAYS[4])
    assert result.success, failure_of(result)
    require_every_day(again)
    assert "write source.generation: 2" in failure_of(installation.run(SALES, partition=DAYS[1]))


def test_messages_that_the_topic_deleted_unread_are_counted(declare: Declare, stream: Stream) -> None:
    stream.make(partitions=1)
    stream.send(messages(rows(DAYS[0])))
    installation = declare(stream.source)
    assert installation.run(SALES, partition=DAYS[0]).success
    stream.send(messages(rows(*DAYS[1:3])))
    stream.cut(partition=0, offset=5)
    said = failure_of(installation.run(SALES, partition=DAYS[1]))
    assert "offsets 3 to 4" in said
    assert "partition 0 before" in said
    assert "set source.generation: 2" in said


def test_new_partitions_are_read_from_their_begin(declare: Declare, stream: Stream) -> None:
    stream.make(partitions=1)
    stream.send(messages(rows(DAYS[0])))
    installation = declare(stream.source)
    assert installation.run(SALES, partition=DAYS[0]).success
    stream.grow(3)
    stream.send(messages(rows(DAYS[1])), 2)
    assert installation.run(SALES, partition=DAYS[1]).success
    assert installation.main.scan(SALES, [DAYS[1]]).collect().equals(rows(DAYS[1]))


def test_aborted_transactions_leave_nothing_and_open_ones_wait(declare: Declare, stream: Stream) -> None:
    stream.make(partitions=1)
    with stream.transaction(messages(rows(DAYS[0])), commit=True):
        pass
    with stream.transaction(messages(rows(DAYS[1])), commit=False):
        pass
    installation = declare(stream.source)
    with stream.transaction(messages(rows(DAYS[2])), commit=True):
        assert installation.run(SALES, partition=DAYS[0]).success
        state = reader_of(installation, KafkaReader).landed.state
        assert state is not None
        assert state.messages == 3
        assert (
            reader_of(installation, KafkaReader).land() == reader_of(installation, KafkaReader).landed
        )  # nothing to land, no commit
    assert installation.run(SALES, partition=DAYS[1], last=DAYS[2]).success
    assert installation.main.scan(SALES, [DAYS[1]]).collect().is_empty()
    assert installation.main.scan(SALES, [DAYS[2]]).collect().equals(rows(DAYS[2]))


def test_a_contract_that_grew_reads_messages_of_before(declare: Declare, stream: Stream) -> None:
    stream.make(partitions=1)
    stream.send([message(**row, till=7) for row in rows(DAYS[0]).iter_rows(named=True)])
    stream.send(messages(rows(DAYS[1])))
    contract = DATASET["contract"]
    assert declare(stream.source).run(SALES, partition=DAYS[0], last=DAYS[1]).success
    till = {"name": "till", "dtype": "int32", "nullable": True}
    wider = declare(stream.source, contract=contract | {"columns": [*contract["columns"], till]})
    result = wider.run(SALES, partition=DAYS[0], last=DAYS[1])
    assert result.success, failure_of(result)
    assert wider.main.scan(SALES, [DAYS[0]]).collect()["till"].to_list() == [7, 7, 7]
    assert wider.main.scan(SALES, [DAYS[1]]).collect()["till"].to_list() == [None, None, None]
    stricter = declare(
        stream.source, contract=contract | {"columns": [*contract["columns"], till | {"nullable": False}]}
    )
    said = failure_of(stricter.run(SALES, partition=DAYS[1]))
    assert f"3 messages of {DAYS[1]} do" in said
    assert "offset 3 of partition 0:" in said
    assert ": column 'till' is missing. " in said


def test_a_clock_that_was_set_back_is_refused(
    declare: Declare, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.make(partitions=1)
    stream.send(messages(rows(DAYS[0])))
    installation = declare(stream.source)
    assert installation.run(SALES, partition=DAYS[0]).success

    class Yesterday(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.now(tz) - timedelta(days=1)

    monkeypatch.setattr("ml_assets.extras.streams.kafka_log.datetime", Yesterday)
    said = failure_of(installation.run(SALES, partition=DAYS[0]))
    assert "clock of this machine" in said
    assert "set the clock" in said


def test_an_outage_is_waited_for_and_costs_one_wait(
    declare: Declare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker of its own, because other tests use the shared one."""
    group = Servers(tmp_path / "own", ("kafka",))
    try:
        group.up()
        stream = Stream(f"127.0.0.1:{group.record.ports['kafka']}", "sales").make(partitions=1)
        monkeypatch.setenv(SERVERS_ENV, stream.servers)
        stream.send([*messages(rows(*DAYS)), AFTER])
        group.kill("kafka")
        impatient = declare(stream.source, patience_seconds=0.5)
        result = impatient.run(SALES, partition=DAYS[0], last=DAYS[4])
        assert "for 0.5 s about topic" in failure_of(result)
        assert materialized(result, SALES) == {}
        back = threading.Timer(1, group.up)
        back.start()
        assert reader_of(declare(stream.source), KafkaReader).latest() == date.fromisoformat(DAYS[-1])
        back.join()
    finally:
        group.down()


def test_readers_at_once_land_each_message_once(declare: Declare, stream: Stream) -> None:
    stream.make(partitions=2)
    many = [message(**rows(DAYS[0]).row(1, named=True) | {"sale": n}) for n in range(2_000)]
    stream.send(many[::2], 0)
    stream.send(many[1::2], 1)
    installation = declare(stream.source)
    readers = [reader_of(installation, KafkaReader) for _ in range(3)]
    with ThreadPoolExecutor() as pool:
        ends = list(pool.map(lambda one: one.land(10), readers))  # chunks enough for each to lose many races
    assert {one.state.messages for one in ends if one.state} == {2_000}
    assert installation.run(SALES, partition=DAYS[0]).success
    landed = reader_of(installation, KafkaReader).landed
    offsets = pl.concat(readers[0].log.read(landed, [DAYS[0]])).select("partition", "offset")
    assert offsets.height == offsets.unique().height == 2_000
    assert sorted(installation.main.scan(SALES, [DAYS[0]]).collect()["sale"]) == list(range(2_000))


def test_messages_land_in_lakefs_with_their_offsets(
    servers: RunningServers, stream: Stream, tmp_path: Path
) -> None:
    stream.make(partitions=1)
    stream.send([*messages(rows(*DAYS)), b"poison", AFTER])
    settings = servers.settings(tmp_path / "home")
    Platform(settings).make_lake_ready()
    installation = Installation(
        tmp_path / "home", [component(Dataset, DATASET, source=stream.source)], settings
    )
    result = installation.run(SALES, partition=DAYS[0], last=DAYS[4])
    assert result.success, failure_of(result)
    require_every_day(installation)
    assert _facts(result, DAYS[4])["dead letters"] == 1
    assert not unaudited(installation.platform.lake, 50)
    stream.send(messages(rows(DAYS[4])))
    assert reader_of(installation, KafkaReader).land(1).state.messages == 19  # pyright: ignore[reportOptionalMemberAccess]


def test_a_killed_reader_loses_and_doubles_no_message(stream: Stream, tmp_path: Path) -> None:
    """`benchmarks/claims/servers/kafka_kills.py` does the same with a million messages and 40 kills."""
    stream.make(partitions=kafka_kills.PARTITIONS)
    sent = kafka_kills.fill(stream, 20_000, seed=1)
    outcome = kafka_kills.run(tmp_path, stream, 20_000, sent, kills=6, chunk=500, seed=2)
    assert outcome.killed >= 4
    assert (outcome.lost, outcome.doubled) == (0, 0)
    assert outcome.dead > 0
