"""Handler for `urllib` that follows no redirects."""

import urllib.request
from http.client import HTTPMessage
from typing import IO


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuse redirects: they lead from https to any address, and turn a POST into a GET."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> None:
        """Follow nothing; the answer then counts as an error."""
