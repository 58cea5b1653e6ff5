"""Addresses that people follow from a training: the page of its run, the folder and the page of its report.

Not here: addresses of the lake's and MLflow's pages, which those know themselves.
"""

from urllib.parse import quote, urlsplit

from resources.addresses import Address
from resources.ledger import evaluation_name

REPORTS = "reports"
"""Folder of all evaluation reports among the artifacts, and their path on the server of the pages."""


def run_url(ui_url: Address, run_id: str) -> str:
    """Page of a Dagster run."""
    return f"{ui_url}/runs/{run_id}"


def report_name(model: str, partition: str, evaluation: str) -> str:
    """Name among the artifacts of report and JSON of one evaluation, by its digest: no other has this folder."""
    return f"{REPORTS}/{model}/{partition}/{evaluation_name(evaluation)}"


def report_page(ui_url: Address, name: str) -> str:
    """Address of a report beside the pages; `name` is its `report_name`.

    It has no host: a page leads to the report on its own server, on any port and through any tunnel.
    """
    return f"{urlsplit(str(ui_url)).path.rstrip('/')}/{quote(name)}/report.html"
