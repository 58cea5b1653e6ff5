"""Reports and pages of partitions over HTTP: those files and no others, as documents in which nothing runs.

A page of a partition is made when somebody opens it, from the lake and the ledger. Not here: the content of a report or
page, and the servers that have these routes (`ml_assets.dagster_host.webserver`, `ml_assets.extras.governance.review`).
"""

from collections.abc import Callable
from threading import Lock
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from ml_assets.data.tables.layout import TableNameRefused
from ml_assets.data.tables.manifest import ManifestUnreadable
from ml_assets.data.tables.reader import PartitionMissing
from ml_assets.foundation.links import DIGESTS, REPORTS, STUDIES
from ml_assets.pages.partition_page import NotOnMain, TableMissing, newest_partition, partition_page
from resources.artifacts import ArtifactMissing, Artifacts, ArtifactsError, read_artifact, relative
from resources.lake import LakeError
from resources.ledger import LedgerError
from resources.platform import Platform

_HTML, _JSON = "text/html", "application/json"
SERVED = {
    REPORTS: {
        "report.html": _HTML,
        "model_card.html": _HTML,
        "model_card.md": "text/markdown",
        "evaluation.json": _JSON,
    },
    STUDIES: {"report.html": _HTML, "study.json": _JSON},
    DIGESTS: {"report.html": _HTML},
}
"""Folder of the artifacts → files in it, at any depth, that the server serves, with their media types."""
FORMS = {
    REPORTS: "/reports/MODEL/PARTITION/EVALUATION/report.html",
    STUDIES: "/studies/ENVIRONMENT/MODEL/STUDY/report.html",
    DIGESTS: "/digests/DAY/report.html",
}
"""Folder of the artifacts → form of the address of its reports."""
LONGEST_NAME, LONGEST_PATH = 255, 2000
"""Bytes of a folder's name and of a path. File systems refuse longer names with an error of their own."""
HEADERS = {
    # A report contains its own styles and pictures. No script of it may run with the rights of Dagster's pages.
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def serving(artifacts: Artifacts, root: str) -> Callable[[Request], Response]:
    """Return the handler of GET below `root`: 404 for paths other than files of a report, 502 if the storage fails."""
    files = SERVED[root]

    def serve(request: Request) -> Response:
        folder, _, file = request.path_params["path"].rpartition("/")
        name = f"{root}/{folder}"
        try:
            relative(name)
        except ArtifactsError:
            file = ""
        as_bytes = name.encode(errors="replace")
        if max(map(len, as_bytes.split(b"/"))) > LONGEST_NAME or len(as_bytes) > LONGEST_PATH:
            file = ""
        if file not in files:
            return told(404, f"no such report: report addresses have the form {FORMS[root]}")
        try:
            content = read_artifact(artifacts, name, file)
            return Response(content, media_type=files[file], headers=HEADERS)
        except ArtifactMissing as error:
            return told(404, f"{error}")
        except ArtifactsError as error:
            return told(502, f"{error}")

    return serve


def told(status: int, why: str) -> Response:
    """Return an answer of plain text."""
    return PlainTextResponse(f"{why}\n", status, HEADERS)


_DRAWING = Lock()
"""Pictures are drawn by one thread at a time."""


def serving_tables(platform: Platform) -> Callable[[Request], Response]:
    """Return the handler of GET below `links.TABLES`.

    Without a key it redirects to the newest partition. 404 for unknown partitions, 502 if lake or ledger fail.
    """

    def serve(request: Request) -> Response:
        kind, _, rest = request.path_params["path"].strip("/").partition("/")
        name, _, key = rest.partition("/")
        table = f"{kind}/{name}"
        try:
            if not key:
                newest = quote(newest_partition(platform, table))
                return RedirectResponse(f"{request.url.path.rstrip('/')}/{newest}", headers=HEADERS)
            with _DRAWING:
                page = partition_page(platform, table, key, links=True).to_html()
        except (TableMissing, PartitionMissing, NotOnMain, TableNameRefused) as error:
            return told(404, f"{error}")
        except (LakeError, LedgerError, ManifestUnreadable) as error:
            return told(502, f"{error}")
        return Response(page, media_type="text/html", headers=HEADERS)

    return serve
