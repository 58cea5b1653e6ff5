"""Notices to people: a JSON document, sent to the address of `ML_ASSETS_WEBHOOK`.

A notice decides nothing, so a webhook that does not answer is reported to the caller and fails nothing.
"""

import json
import threading
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from urllib.parse import urlsplit

from tenacity import RetryCallState, Retrying, retry_if_result, stop_after_attempt, wait_fixed

from resources.addresses import NoRedirects

TRIES = 3
PATIENCE_SECONDS = 5.0
"""Wait for an answer, for each try; also for one that comes byte by byte."""
PAUSE_SECONDS = 1.0


def send(address: str, notice: Mapping[str, object]) -> str:
    """Send a notice by POST; return why it did not arrive, or an empty text. Retries twice.

    The reason names the host alone: the path of a webhook is often its secret.
    """

    def given_up(state: RetryCallState) -> str:
        why = state.outcome.result() if state.outcome else ""
        return f"the webhook at {urlsplit(address).hostname} did not take it in {TRIES} tries ({why})"

    retrying = Retrying(
        retry=retry_if_result(bool),
        stop=stop_after_attempt(TRIES),
        wait=wait_fixed(PAUSE_SECONDS),
        retry_error_callback=given_up,
    )
    return retrying(_sent, address, json.dumps(notice).encode())


def _sent(address: str, body: bytes) -> str:
    """Send a body once; return why it did not arrive, or an empty text.

    In a thread: the time limit of a socket begins anew with each byte, so a slow answer would hold up the caller.
    """
    found: list[str] = []

    def work() -> None:
        try:
            request = urllib.request.Request(
                address, body, {"Content-Type": "application/json"}, method="POST"
            )
            with _OPENER.open(request, timeout=PATIENCE_SECONDS) as answer:
                answer.read(1)
            found.append("")
        except (OSError, HTTPException, ValueError) as error:
            found.append(f"{type(error).__name__} {getattr(error, 'code', '')}".strip())

    sending = threading.Thread(target=work, name="webhook", daemon=True)
    sending.start()
    sending.join(2 * PATIENCE_SECONDS)  # one for the connection, one for the answer
    return found[0] if found else "TimeoutError"


_OPENER = urllib.request.build_opener(NoRedirects)
