"""Keys and options for sources whose files are in a folder or in S3."""

from ml_assets.data.sources.errors import VariableMissing
from ml_assets.data.sources.source_section import VariableName
from ml_assets.data.sources.tabular import TabularSource
from resources.platform import Platform

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
