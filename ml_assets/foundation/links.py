"""Links from trainings and studies: the page of the run, the folder and the page of a report.

Not here: pages of the lake and of MLflow (their own modules build those).
"""

from urllib.parse import quote, urlsplit

from resources.addresses import Address
from resources.ledger import evaluation_name

REPORTS = "reports"
"""Folder of all evaluation reports among the artifacts, and its path on the server of the pages."""
STUDIES = "studies"
"""Folder of all results of studies among the artifacts, with their reports, and its path on the server of the pages."""

DIGESTS = "digests"
"""Folder of all nightly digests among the artifacts, one folder per day, and its path on the server of the pages."""

TABLES = "tables"
"""Path of the pages of partitions on the server of the pages."""


def run_url(ui_url: Address, run_id: str) -> str:
    """Return the address of a Dagster run's page."""
    return f"{ui_url}/runs/{run_id}"


def review_page(review_url: Address, model: str, number: int) -> str:
    """Return the address of the page on which a person reviews a version."""
    return f"{str(review_url).rstrip('/')}/models/{quote(model, safe='')}/{number}"


def report_name(model: str, partition: str, evaluation: str) -> str:
    """Return the folder name of one evaluation's report and JSON among the artifacts. The digest makes it unique."""
    return f"{REPORTS}/{model}/{partition}/{evaluation_name(evaluation)}"


def report_page(ui_url: Address, name: str, file: str = "report.html") -> str:
    """Return the address of a file of a report beside the pages; `name` is its folder among the artifacts.

    It has no host: a page then links to the report on its own server, on any port and through any tunnel.
    """
    return f"{urlsplit(str(ui_url)).path.rstrip('/')}/{quote(name)}/{file}"


def partition_address(ui_url: Address, table: str, key: str) -> str:
    """Return the address of the page about a partition, without a host as in `report_page`."""
    return report_page(ui_url, f"{TABLES}/{table}", key)
