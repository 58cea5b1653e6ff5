"""Common parts of the `source` section of every kind, and the types of its keys. Nothing here connects."""

import hashlib
import json
import re
from datetime import timedelta
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from ml_assets.data.sources.protocol import VariableMissing
from ml_assets.data.validation.contract import Contract
from ml_assets.foundation.sections import Section
from resources.addresses import Address
from resources.platform import Platform

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")


def _must_be_a_variable(text: str) -> str:
    # The message never repeats the text, because it may be the credential itself.
    if not _VARIABLE.fullmatch(text):
        raise ValueError(
            "write the name of an environment variable, such as WAREHOUSE_URL; a credential never stands in a file"
        )
    return text


VariableName = Annotated[str, AfterValidator(_must_be_a_variable)]
"""Name of an environment variable that holds an address or a credential."""


def _must_have_no_credentials(text: str) -> str:
    if Address(text).has_credentials:
        raise ValueError(
            f"{Address(text)} holds credentials: leave them out, and name environment variables in the keys that end "
            "with _env"
        )
    return text


PublicAddress = Annotated[str, AfterValidator(_must_have_no_credentials)]
"""Address or path without credentials."""


class WatchSection(Section):
    """A sensor that asks a source for its latest day."""

    every_seconds: int = Field(default=60, ge=5)
    """Seconds between two calls of `latest`."""
    retry_seconds: int = Field(default=3600, ge=5)
    """Seconds to wait before the sensor requests a failed, rejected or missing partition again."""
    recheck: Annotated[str, Field(pattern=r"^[1-9][0-9]{0,4}[dh]$")] | None = None
    """Time before the end of the newest partition on main, such as `7d` or `36h`. Each call compares the partitions
    that lie in it with the source, and requests those that changed there. Default: the two newest partitions."""
    enabled: bool = False
    """Run the sensor without switching it on in the UI."""

    @property
    def recheck_time(self) -> timedelta | None:
        """`recheck` as a duration."""
        if self.recheck is None:
            return None
        number = int(self.recheck[:-1])
        return timedelta(days=number) if self.recheck.endswith("d") else timedelta(hours=number)


class SourceSection(Section):
    """Source of a dataset."""

    apart_from_rows: ClassVar[frozenset[str]] = frozenset({"watch"})
    """Keys that do not decide which rows are read."""
    watch: WatchSection | None = None
    """Sensor that asks the source for its latest day and ingests new partitions."""

    @property
    def code_version(self) -> str:
        """Code version of the dataset, 16 hex digits: a digest of the keys that decide which rows are read.

        Names of environment variables and `apart_from_rows` do not count.
        """
        facts: dict[str, Any] = self.model_dump(mode="json", exclude=set(self.apart_from_rows))
        facts = {name: value for name, value in facts.items() if not name.endswith("_env")}
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def lacks_for_latest(self) -> str | None:
        """Key that the section lacks to find the newest day of the source, and its meaning; None if it lacks none."""
        return None

    @property
    def complete_after(self) -> timedelta:
        """Time after the end of a partition until the source holds all its rows."""
        return timedelta(0)

    def lacks_in(self, contract: Contract) -> str | None:
        """Return what this kind of source needs and the contract lacks, with the remedy; None if it lacks nothing."""
        return None


class TabularSource(SourceSection):
    """Source that holds a table, with a column for the time of a row."""

    time_column: str | None = None
    """Column of type date or datetime that decides to which partition a row belongs; of type datetime if partitions are
    hours. Default: the contract's event time."""
    watermark_column: str | None = None
    """Column of type datetime with the moment at which the source last changed a row."""
    complete_after_hours: Annotated[float, Field(ge=0, le=24 * 366)] = 0.0
    """Hours after the end of a partition until the source holds all its rows. It is not read before."""

    @property
    def complete_after(self) -> timedelta:
        """See `SourceSection`."""
        return timedelta(hours=self.complete_after_hours)


_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


class StoredSource(TabularSource):
    """Source of files in a local folder or in S3."""

    endpoint_url_env: VariableName | None = None
    """Environment variable with the address of an S3 server. Default: the platform's, `ML_ASSETS_S3_ENDPOINT_URL`."""
    access_key_id_env: VariableName | None = None
    """Environment variable with the access key. Default: AWS's own variables and files."""
    secret_access_key_env: VariableName | None = None
    """Environment variable with the secret key; required with `access_key_id_env`."""


def variable(name: str, platform: Platform) -> str:
    """Return the value of an environment variable that a section names. Raises `VariableMissing`."""
    value = platform.variable(name)
    if value is None:
        raise VariableMissing(
            f"the environment variable {name} is not set, and source names it: set it where Dagster and the command run"
        )
    return value


def storage_options(section: StoredSource, platform: Platform) -> dict[str, str]:
    """Return options for polars and deltalake, by their shared names. Raises `VariableMissing`."""
    options: dict[str, str] = {}
    endpoint = (
        variable(section.endpoint_url_env, platform)
        if section.endpoint_url_env
        else platform.settings.s3_endpoint_url.reveal()
        if platform.settings.s3_endpoint_url
        else None
    )
    if endpoint is not None:
        options["aws_endpoint_url"] = endpoint
    # The clients of polars and deltalake find AWS's own variables, but refuse an address without TLS.
    used = endpoint or next(filter(None, map(platform.variable, _ENDPOINTS)), "")
    if used.startswith("http://"):
        options["aws_allow_http"] = "true"
    if section.access_key_id_env is not None:
        options["aws_access_key_id"] = variable(section.access_key_id_env, platform)
    if section.secret_access_key_env is not None:
        options["aws_secret_access_key"] = variable(section.secret_access_key_env, platform)
    return options
