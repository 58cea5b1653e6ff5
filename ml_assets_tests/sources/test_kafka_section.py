"""The section of a Kafka source without a broker: keys, what the contract needs, security, the version of the code."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from ml_assets.components import Dataset
from ml_assets.components.documents import attribute_faults, declared_source
from ml_assets.data.sources.protocol import VariableMissing
from ml_assets.extras.streams.sections import KafkaSource
from ml_assets_tests.sources.sales import DATASET
from resources.platform import Platform
from resources.settings import Settings

SECTION: dict[str, Any] = {"kind": "kafka", "servers_env": "BROKERS", "topic": "shop.sales"}
USER = {"username_env": "STREAM_USER", "password_env": "STREAM_PASSWORD"}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"servers_env": "ada:hunter2@broker:9092"}, "a credential never stands in a file"),
        ({"topic": "shop sales"}, "should match pattern"),
        ({"format": "avro"}, "'json'"),
        ({"username_env": "STREAM_USER"}, "`username_env` and `password_env` need each other"),
        (USER | {"mechanism": "PLAIN"}, "sends the password as clear text: set `tls`, or a SCRAM mechanism"),
        ({"ca_file_env": "STREAM_CA"}, "`ca_file_env` needs `tls: true`"),
        ({"latenes_hours": 2}, "did you mean 'lateness_hours'?"),
        ({"time_column": "product"}, "'product' is no column of the contract of type date or datetime"),
    ],
)
def test_wrong_sections_are_refused(source: dict[str, Any], said: str) -> None:
    faults = attribute_faults(Dataset.get_model_cls(), DATASET | {"source": SECTION | source})
    assert [words for _, words in faults if said in words], faults
    assert "hunter2" not in str(faults)


@pytest.mark.parametrize(
    ("lacks", "said"),
    [
        ("primary_key", "needs contract.primary_key: without it, a message that a producer repeats"),
        ("event_time", "needs contract.event_time, or source.time_column"),
    ],
)
def test_the_contract_needs_a_key_and_a_time(lacks: str, said: str) -> None:
    contract = {name: value for name, value in DATASET["contract"].items() if name != lacks}
    faults = attribute_faults(Dataset.get_model_cls(), DATASET | {"contract": contract, "source": SECTION})
    assert [words for _, words in faults if said in words], faults


@pytest.mark.parametrize("named", [{}, {"time_column": "sold_at"}])
def test_a_dataset_without_columns_can_be_previewed(tmp_path: Path, named: dict[str, str]) -> None:
    """`ml-assets source preview` tells the columns, so it cannot ask for them."""
    draft = {name: value for name, value in DATASET.items() if name != "contract"}
    document = {"type": "ml_assets.components.Dataset", "attributes": draft | {"source": SECTION | named}}
    (tmp_path / "defs.yaml").write_text(yaml.safe_dump(document))
    declared = declared_source(tmp_path, "sales")
    assert declared.section == KafkaSource.model_validate(SECTION | named)
    assert declared.table.contract is None


def test_security_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = KafkaSource.model_validate(SECTION | USER | {"tls": True, "ca_file_env": "STREAM_CA"})
    platform = Platform(Settings(home=tmp_path))
    monkeypatch.setenv("BROKERS", "a:9093,b:9093")
    monkeypatch.setenv("STREAM_USER", "ada")
    monkeypatch.setenv("STREAM_CA", "/etc/ca.pem")
    with pytest.raises(VariableMissing, match="STREAM_PASSWORD is not set"):
        section.client_settings(platform)
    monkeypatch.setenv("STREAM_PASSWORD", "hunter2")
    assert section.client_settings(platform) == {
        "bootstrap.servers": "a:9093,b:9093",
        "log_level": "0",
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": "/etc/ca.pem",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "ada",
        "sasl.password": "hunter2",
    }


def test_only_keys_that_decide_rows_change_the_code_version() -> None:
    section = KafkaSource.model_validate(SECTION)
    same = SECTION | USER | {"generation": 2, "lateness_hours": 3, "reopen_days": 1, "servers_env": "OTHERS"}
    assert KafkaSource.model_validate(same).code_version == section.code_version
    assert KafkaSource.model_validate(SECTION | {"topic": "b"}).code_version != section.code_version
