"""Times that HTTP servers tell: a real server answers with headers that proxies and old servers send."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from resources.clocks import behind_http_server


@contextmanager
def telling(date: str | None) -> Iterator[str]:
    """Serve answers with this header `Date`, or without one; yield the address."""

    class Told(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response_only(200)
            if date is not None:
                self.send_header("Date", date)
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Told) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    "date", [None, "", "soon", "Mon, 99 Nov 2026 14:00:00 GMT", "Mon, 30 Nov 2026 14:00:00 +9999999999"]
)
def test_a_server_that_tells_no_date_is_left_out(date: str | None) -> None:
    with telling(date) as address:
        assert behind_http_server(address, 5) is None


@pytest.mark.parametrize("zone", ["GMT", "-0000", "EST", ""])
def test_a_time_counts_as_utc_whatever_zone_is_written(zone: str) -> None:
    hour_ahead = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True).replace("GMT", zone)
    with telling(hour_ahead) as address:
        behind = behind_http_server(address, 5)
    assert behind is not None
    assert abs(behind - timedelta(hours=1)) < timedelta(seconds=5)
