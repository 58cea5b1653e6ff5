"""Kafka from pinned jars: one process that is broker and controller, on loopback. It has two listeners: one that is
open, and one with TLS and a password.

Topics are made by their users (`auto.create.topics.enable=false`), so a misspelt name is an error and not a new topic.
"""

import re
import shutil
import signal
import socket
import struct
import subprocess
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from deployment.testbed.jars import jars
from deployment.testbed.processes import Process, ServerFailed, start
from deployment.testbed.servers.servers_record import (
    HOST,
    KAFKA,
    KAFKA_CONTROLLER,
    KAFKA_SECURE,
    KAFKA_USER,
    ServersRecord,
    server_environment,
)

_SECONDS = 2.0
_CLUSTER = "bWwtYXNzZXRzLWthZmthMQ"
"""Id of the cluster: 16 bytes in base64url. Each folder has a cluster of its own, so it may be fixed."""
_METADATA_REQUEST = 3
_LOGGING = "-Dorg.slf4j.simpleLogger"
_SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_LOGIN = "org.apache.kafka.common.security"


class KafkaServer:
    """The Kafka broker, for sources of the kind `kafka`."""

    name = KAFKA
    ask = signal.SIGTERM
    seconds = 120.0

    def prepare(self, record: ServersRecord) -> None:
        """Format the folder of its logs, once and completely."""
        folder = record.path / KAFKA
        folder.mkdir(exist_ok=True)
        data, making, settings = folder / "data", folder / "making", folder / "server.properties"
        if not data.exists():
            shutil.rmtree(making, ignore_errors=True)
            _make_certificate(record)
            _write(settings, _settings(record, making))
            formatted: list[str | Path] = [_CLUSTER, "-c", settings]
            for mechanism in _SCRAM:
                user = f"{mechanism}=[name={KAFKA_USER},password={record.kafka_password}]"
                formatted += ["--add-scram", user]
            done = subprocess.run(
                [*_java(folder), "kafka.tools.StorageTool", "format", "-t", *formatted],
                cwd=folder,
                env=server_environment(record),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise ServerFailed(f"Kafka cannot format {making}: {(done.stderr or done.stdout).strip()}")
            making.rename(data)
        _write(settings, _settings(record, data))

    def start(self, record: ServersRecord) -> Process:
        """Start it with a small heap; each worker of the tests has a broker of its own."""
        folder = record.path / KAFKA
        return start(
            KAFKA,
            [*_java(folder), "kafka.Kafka", folder / "server.properties"],
            log=record.log(KAFKA),
            env=server_environment(record),
            cwd=folder,
        )

    def why_not(self, record: ServersRecord) -> str:
        """Return the reason why it names no broker that accepts requests; empty once it does."""
        try:
            brokers = _brokers(record)
        except (OSError, struct.error) as error:
            return f"{HOST}:{record.ports[KAFKA]}: {error}"
        return "" if brokers else f"{HOST}:{record.ports[KAFKA]}: the controller has not accepted the broker"

    def finish(self, record: ServersRecord) -> None:
        """Do nothing: no set-up is needed."""

    def version(self, record: ServersRecord) -> str:
        """Return the version that the server wrote into its log. Its protocol has none."""
        found = re.findall(r"Kafka version: (\S+)", record.log(KAFKA).read_text(errors="replace"))
        if not found:
            raise ServerFailed(f"Kafka wrote no version into {record.log(KAFKA)}.")
        return f"Kafka {found[-1]}"


def _java(folder: Path) -> list[str | Path]:
    found = shutil.which("java")
    if found is None:
        raise ServerFailed(
            "Java is not installed: deployment/install-system-packages.sh deployment/system-packages-servers.txt"
        )
    logging = [
        f"{_LOGGING}.defaultLogLevel=warn",
        f"{_LOGGING}.log.org.apache.kafka.common.utils.AppInfoParser=info",
    ]
    # One collector thread and quick compilation: a start takes 2 s, and 4 s of processor time with the defaults.
    machine = ["-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    # By default, a killed process leaves counters and unpacked libraries in the system's temporary folder.
    places = ["-XX:-UsePerfData", f"-Djava.io.tmpdir={folder}", "-Djava.net.preferIPv4Stack=true"]
    return [found, *machine, *places, *logging, "-cp", f"{jars(KAFKA)}/*"]


def _make_certificate(record: ServersRecord) -> None:
    certificate = record.kafka_certificate
    key = certificate.with_suffix(".key")
    subject = ("-subj", f"/CN={HOST}", "-addext", f"subjectAltName=IP:{HOST}", "-days", "365")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc")
    made = ["openssl", "req", "-x509", *curve, *subject, "-keyout", str(key), "-out", str(certificate)]
    done = subprocess.run(made, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ServerFailed(f"openssl cannot make a certificate for Kafka: {done.stderr.strip()}")
    both = certificate.with_suffix(".pem")
    both.touch(mode=0o600)
    both.write_text(key.read_text() + certificate.read_text())


def _secure_listener(record: ServersRecord) -> dict[str, str]:
    of_it = "listener.name.secure"
    scram = f"{_LOGIN}.scram.ScramLoginModule required;"
    plain = f'{_LOGIN}.plain.PlainLoginModule required user_{KAFKA_USER}="{record.kafka_password}";'
    logins = {**dict.fromkeys(_SCRAM, scram), "PLAIN": plain}
    return {
        f"{of_it}.ssl.keystore.type": "PEM",
        f"{of_it}.ssl.keystore.location": str(record.kafka_certificate.with_suffix(".pem")),
        f"{of_it}.sasl.enabled.mechanisms": ",".join(logins),
        **{f"{of_it}.{mechanism.lower()}.sasl.jaas.config": login for mechanism, login in logins.items()},
    }


def _settings(record: ServersRecord, data: Path) -> Mapping[str, str]:
    broker = f"PLAINTEXT://{HOST}:{record.ports[KAFKA]},SECURE://{HOST}:{record.ports[KAFKA_SECURE]}"
    controller = f"{HOST}:{record.ports[KAFKA_CONTROLLER]}"
    internal = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
    single = ("replication.factor", "num.partitions", "min.isr")
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"{broker},CONTROLLER://{controller}",
        "advertised.listeners": broker,
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": str(data),
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        # The controller forgets a killed broker after this time, and refuses its successor until then: 9 s by default.
        "broker.session.timeout.ms": "1000",
        "broker.heartbeat.interval.ms": "200",
        "log.cleaner.dedupe.buffer.size": "4194304",
        **_secure_listener(record),
    } | {
        f"{topic}.{setting}": "1"
        for topic in internal
        for setting in single
        if (topic, setting) not in _UNKNOWN
    }


_UNKNOWN = {("offsets.topic", "min.isr")}


def _write(file: Path, settings: Mapping[str, str]) -> None:
    file.touch(mode=0o600)  # it holds a password
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))


def _brokers(record: ServersRecord) -> int:
    """Return the number of brokers that accept requests, by a request for metadata (Kafka's protocol, version 0)."""
    no_client, no_topics = -1, 0
    body = struct.pack(">hhihi", _METADATA_REQUEST, 0, 1, no_client, no_topics)
    address = (HOST, record.ports[KAFKA])
    with closing(socket.create_connection(address, timeout=_SECONDS)) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        answer = b""
        while len(answer) < 12 and (more := connection.recv(65536)):
            answer += more
    _size, _correlation, brokers = struct.unpack(">iii", answer[:12])
    return brokers
