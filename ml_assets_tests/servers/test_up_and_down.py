"""The servers come up, come back after SIGKILL with their data, and go without a trace."""

import json
import socket
import stat
from pathlib import Path

import boto3
import pytest
import redis
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from deployment.testbed import processes
from deployment.testbed.build import read_module
from deployment.testbed.jars import jar_version
from deployment.testbed.processes import ServerFailed
from deployment.testbed.servers import NAMES, Servers
from deployment.testbed.servers.leftovers import leftovers
from deployment.testbed.servers.servers_record import load
from ml_assets_tests.servers.running_servers import RunningServers


def test_each_server_says_which_version_it_is(servers: RunningServers) -> None:
    pinned = {name: read_module(name).version.removeprefix("v") for name in ("versitygw", "lakefs")}
    assert servers.versions["s3"] == f"versitygw {pinned['versitygw']}"
    assert servers.versions["lakefs"] == f"lakeFS {pinned['lakefs']}"
    assert servers.versions["postgresql"].startswith("PostgreSQL ")
    assert servers.versions["mlflow"].startswith("MLflow 3.")
    assert servers.versions["kafka"] == f"Kafka {jar_version('kafka')}"
    assert servers.versions["redis"].startswith("Redis ")


def test_a_second_up_leaves_everything_as_it_is(servers: RunningServers) -> None:
    before = servers.record
    servers.up()
    assert servers.record == before


def test_what_has_credentials_is_for_its_owner_only(servers: RunningServers) -> None:
    for file in ("servers.json", "servers.env"):
        path = servers.record.path / file
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert servers.record.s3_secret in path.read_text()


def test_no_command_line_shows_a_credential(servers: RunningServers) -> None:
    for process in servers.record.processes.values():
        for member in processes.family(process):
            arguments = Path(f"/proc/{member.pid}/cmdline").read_text()
            assert [name for name, secret in servers.secrets.items() if secret in arguments] == []


def test_servers_listen_on_loopback_only(servers: RunningServers) -> None:
    wildcard_or_other = {
        port: address
        for address, port in _listening()
        if port in servers.record.ports.values() and address != "0100007F"
    }
    assert wildcard_or_other == {}


@pytest.mark.parametrize("name", NAMES)
def test_a_killed_server_comes_back_at_its_address_with_its_data(servers: RunningServers, name: str) -> None:
    before = servers.record
    store = boto3.client("s3", endpoint_url=before.url("s3"))
    store.put_object(Bucket="artifacts", Key=f"kept/{name}", Body=b"kept")
    servers.query(f"DROP TABLE IF EXISTS kept_{name}; CREATE TABLE kept_{name} AS SELECT 42 AS answer")

    servers.kill(name)
    assert servers.processes(name) == 0
    assert servers.why_not() == {one: "not running" if one == name else "" for one in NAMES} | _needing(
        servers, name
    )
    servers.restart(name)

    assert servers.why_not() == dict.fromkeys(NAMES, "")
    assert servers.record.ports == before.ports
    assert servers.record.processes[name] != before.processes[name]
    assert store.get_object(Bucket="artifacts", Key=f"kept/{name}")["Body"].read() == b"kept"
    assert servers.query(f"SELECT answer FROM kept_{name}") == "42"


def test_kafka_and_redis_keep_their_data_when_they_are_killed(servers: RunningServers) -> None:
    address, topic = servers.env["KAFKA_BOOTSTRAP_SERVERS"], "kept"
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    producer = Producer({"bootstrap.servers": address, "acks": "all"})
    producer.produce(topic, b"kept")
    assert producer.flush(60) == 0
    redis.Redis.from_url(servers.env["REDIS_URL"]).set("kept", "kept")

    for name in ("kafka", "redis"):
        servers.kill(name)
        servers.restart(name)

    consumer = Consumer({"bootstrap.servers": address, "group.id": "kept", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    message = consumer.poll(60)
    assert message is not None
    assert message.value() == b"kept"
    consumer.close()
    admin.delete_topics([topic])[topic].result()
    assert redis.Redis.from_url(servers.env["REDIS_URL"]).get("kept") == b"kept"
    with pytest.raises(redis.AuthenticationError):
        redis.Redis(port=servers.record.ports["redis"]).get("kept")


def _needing(servers: RunningServers, killed: str) -> dict[str, str]:
    """Return the servers that report a fault while `killed` is away."""
    reasons = servers.why_not()
    return {name: reasons[name] for name in NAMES if name != killed and reasons[name]}


def test_a_frozen_server_is_not_ready_until_it_goes_on(servers: RunningServers) -> None:
    servers.freeze("s3")
    assert "timed out" in servers.why_not()["s3"]
    servers.thaw("s3")
    assert servers.why_not()["s3"] == ""


def test_down_leaves_nothing_even_of_killed_servers(tmp_path: Path) -> None:
    group = Servers(tmp_path / "own")
    try:
        group.up()
        record = group.record
        assert len(leftovers(record)) > len(NAMES) * 2  # a process and a port of each, and a folder
        for name in ("postgresql", "mlflow"):
            group.kill(name)
    finally:
        group.down()
    assert leftovers(record) == []
    assert _shared_memory(record.processes["postgresql"].pid) == []
    assert not group.folder.exists()
    group.down()  # again: nothing to do


def test_servers_whose_starter_died_before_writing_them_down_are_found(own_servers: Servers) -> None:
    own_servers.up()
    record = own_servers.record
    (own_servers.folder / "servers.json").unlink()
    own_servers.down()
    assert not any(processes.alive(process) for process in record.processes.values())


def test_a_taken_port_is_a_clear_error_and_nobody_is_harmed(own_servers: Servers) -> None:
    own_servers.up()
    own_servers.kill("s3")
    port = own_servers.record.ports["s3"]
    with socket.create_server(("127.0.0.1", port)):
        with pytest.raises(ServerFailed, match=rf"Another program uses port {port} of s3.*servers-down"):
            own_servers.up()
        assert own_servers.why_not()["postgresql"] == ""
    own_servers.up()
    assert not any(own_servers.why_not().values())


def test_a_server_that_dies_at_its_start_is_quoted(own_servers: Servers) -> None:
    own_servers.up()
    own_servers.stop("postgresql")
    data = Path(own_servers.record.database_folder) / "data"
    (data / "PG_VERSION").write_text("9.0\n")
    with pytest.raises(ServerFailed, match=r"(?s)postgresql ended before.*initialized by PostgreSQL"):
        own_servers.restart("postgresql")


def test_asking_where_nothing_was_started_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ServerFailed, match="make servers-up"):
        Servers(tmp_path / "none").why_not()


def test_the_record_reads_back_as_it_was_written(servers: RunningServers) -> None:
    record = servers.record
    assert load(record.path) == record
    assert set(json.loads((record.path / "servers.json").read_text())["processes"]) == set(NAMES)


def _listening() -> list[tuple[str, int]]:
    """Address as the kernel writes it (hexadecimal, reversed) and port of every IPv4 listener, ::-wildcards too."""
    found: list[tuple[str, int]] = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            if state == "0A":
                address, _, port = local.partition(":")
                found.append((address, int(port, 16)))
    return found


def _shared_memory(creator: int) -> list[str]:
    """System V segments that a process made: columns 5 is the creator's id."""
    rows = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return [row for row in rows if int(row.split()[4]) == creator]
