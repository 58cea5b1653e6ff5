"""Sections of sources with a client library of their own: topics of Kafka, tables of Delta Lake and Iceberg.

They load without the libraries, so a declaration is checked also where an extra is missing. Not here: the readers
(`kafka_source`, `delta_source`, `iceberg_source`), which import their library.
"""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import AwareDatetime, Field, model_validator

from ml_assets.data.sources.protocol import PublicAddress, SourceSection, StoredSource, VariableName, variable
from ml_assets.data.validation.contract import Contract
from resources.platform import Platform


class KafkaSource(SourceSection):
    """Source that is a topic of Kafka."""

    apart_from_rows: ClassVar[frozenset[str]] = frozenset(
        {"watch", "lateness_hours", "reopen_days", "generation", "tls", "mechanism"}
    )
    kind: Literal["kafka"]
    """A topic of Kafka, by event time."""
    servers_env: VariableName
    """Environment variable with the brokers: `host:port`, several with commas between them."""
    topic: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")]
    """Name of the topic."""
    format: Literal["json"] = "json"
    """Each message is a JSON object with the columns of the contract. Further fields are ignored."""
    time_column: str | None = Field(default=None, examples=["sold_at"])
    """Column of type date or datetime that decides to which day a row belongs. Default: the contract's event time."""
    lateness_hours: Annotated[float, Field(ge=0)] = 1.0
    """Hours by which events come late at most, as a rule. A day is complete when all partitions of the topic have
    events that are later than its end by this much."""
    reopen_days: Annotated[float, Field(ge=0)] = 7.0
    """Days before the watermark for which a late event is still a row; its day is then read again. Older events are
    dead letters."""
    generation: Annotated[int, Field(ge=1)] = 1
    """Raise it by one to read the topic again from its oldest message: after it was deleted and made again, or after it
    deleted messages that were not read. Messages that come again with the same content add no row."""
    tls: bool = False
    """Encrypt connections."""
    ca_file_env: VariableName | None = Field(default=None, examples=["KAFKA_CA_FILE"])
    """Environment variable with the path of the certificates to trust. Default: those of the system."""
    username_env: VariableName | None = Field(default=None, examples=["KAFKA_USER"])
    """Environment variable with the user, for SASL."""
    password_env: VariableName | None = Field(default=None, examples=["KAFKA_PASSWORD"])
    """Environment variable with the password; required with `username_env`."""
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    """SASL mechanism."""

    @model_validator(mode="after")
    def _is_safe(self) -> Self:
        if (self.username_env is None) != (self.password_env is None):
            raise ValueError("`username_env` and `password_env` need each other")
        if self.username_env is not None and self.mechanism == "PLAIN" and not self.tls:
            raise ValueError(
                "mechanism PLAIN without `tls: true` sends the password as clear text: set `tls`, or a SCRAM mechanism"
            )
        if self.ca_file_env is not None and not self.tls:
            raise ValueError("`ca_file_env` needs `tls: true`")
        return self

    def lacks_in(self, contract: Contract) -> str | None:
        """See `SourceSection`."""
        column = self.time_column or contract.event_time
        if column is None:
            return "a source of kind kafka needs contract.event_time, or source.time_column, for the day of a row"
        if column not in contract.by_name or contract.by_name[column].dtype not in ("date", "datetime"):
            return f"source.time_column '{column}' is no column of the contract of type date or datetime"
        if not contract.primary_key:
            return (
                "a source of kind kafka needs contract.primary_key: without it, a message that a producer repeats "
                "cannot be told from another row"
            )
        return None

    def client_settings(self, platform: Platform) -> dict[str, str]:
        """Return the settings of librdkafka for a connection. Raises `VariableMissing`."""
        settings = {"bootstrap.servers": variable(self.servers_env, platform), "log_level": "0"}
        protocol = "SSL" if self.tls else "PLAINTEXT"
        if self.ca_file_env is not None:
            settings["ssl.ca.location"] = variable(self.ca_file_env, platform)
        if self.username_env is not None and self.password_env is not None:
            protocol = f"SASL_{protocol}"
            settings |= {
                "sasl.mechanism": self.mechanism,
                "sasl.username": variable(self.username_env, platform),
                "sasl.password": variable(self.password_env, platform),
            }
        return settings | {"security.protocol": protocol}


class DeltaSource(StoredSource):
    """Source that is a Delta table."""

    kind: Literal["delta"]
    """A Delta Lake table."""
    path: PublicAddress
    """Folder of the table, or `s3://bucket/prefix`."""
    version: int | None = Field(default=None, ge=0)
    """Version to read. Default: the newest one at each run."""
    as_of: AwareDatetime | None = Field(default=None, examples=["2024-01-31T00:00:00Z"])
    """Read the version that was the newest at this moment, such as 2024-01-31T00:00:00Z."""

    @model_validator(mode="after")
    def _names_one_version(self) -> Self:
        if self.version is not None and self.as_of is not None:
            raise ValueError("`version` and `as_of` both choose the version to read: leave one out")
        return self


class IcebergSource(StoredSource):
    """Source that is an Iceberg table."""

    kind: Literal["iceberg"]
    """An Iceberg table."""
    catalog_env: VariableName
    """Environment variable with the address of the catalog's database: `postgresql://user:password@host:port/database`,
    or `sqlite:////folder/catalog.db`."""
    catalog: str = "default"
    """Name of the catalog in that database."""
    table: Annotated[str, Field(pattern=r"^\w+(\.\w+)+$")]
    """Name of the table in the catalog, with its namespace: `shop.sales`."""
    snapshot: int | None = Field(default=None, ge=0)
    """Id of the snapshot to read. Default: the newest one at each run."""
    as_of: AwareDatetime | None = Field(default=None, examples=["2024-01-31T00:00:00Z"])
    """Read the snapshot that was the newest at this moment, such as 2024-01-31T00:00:00Z."""

    @model_validator(mode="after")
    def _names_one_snapshot(self) -> Self:
        if self.snapshot is not None and self.as_of is not None:
            raise ValueError("`snapshot` and `as_of` both choose the snapshot to read: leave one out")
        return self
