"""Pages of partitions over HTTP, beside Dagster's pages: made when somebody opens one, from the lake and the ledger.

Not here: the content of a page (`partition_page`), and the server that has this route (`dagster_host.webserver`).
"""

from collections.abc import Callable
from threading import Lock
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ml_assets.data.tables.layout import TableNameRefused
from ml_assets.data.tables.manifest import ManifestUnreadable
from ml_assets.data.tables.reader import PartitionMissing
from ml_assets.model.steps.partition_page import NotOnMain, TableMissing, newest_partition, partition_page
from ml_assets.model.steps.served_reports import HEADERS, told
from resources.lake import LakeError
from resources.ledger import LedgerError
from resources.platform import Platform

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
                page = partition_page(platform, table, key, links=True)
        except (TableMissing, PartitionMissing, NotOnMain, TableNameRefused) as error:
            return told(404, f"{error}")
        except (LakeError, LedgerError, ManifestUnreadable) as error:
            return told(502, f"{error}")
        return Response(page.to_html(), media_type="text/html", headers=HEADERS)

    return serve
