"""Notices to people: a JSON document, sent to the address of `ML_ASSETS_WEBHOOK`.

A notice decides nothing, so a webhook that does not answer is reported to the caller and fails nothing.
"""

import json
import time
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from urllib.parse import urlsplit

from resources.no_redirects import NoRedirects

TRIES = 3
PATIENCE_SECONDS = 5.0
"""Wait for an answer, for each try."""
PAUSE_SECONDS = 1.0


def send(address: str, notice: Mapping[str, object]) -> str:
    """Send a notice by POST; return why it did not arrive, or an empty text. Retries twice.

    The reason names the host alone: the path of a webhook is often its secret.
    """
    why = ""
    for number in range(TRIES):
        if number:
            time.sleep(PAUSE_SECONDS)
        try:
            request = urllib.request.Request(
                address,
                json.dumps(notice).encode(),
                {"Content-Type": "application/json"},
                method="POST",
            )
            with _OPENER.open(request, timeout=PATIENCE_SECONDS) as answer:
                answer.read(1)
            return ""
        except (OSError, HTTPException, ValueError) as error:
            why = f"{type(error).__name__} {getattr(error, 'code', '')}".strip()
    return f"the webhook at {urlsplit(address).hostname} did not take it in {TRIES} tries ({why})"


_OPENER = urllib.request.build_opener(NoRedirects)
