"""Subscriptions of Dagster's pages, such as live logs: only reading goes through.

The webserver speaks the older protocol `graphql-ws`. Each message of the browser is read and written anew, so the
webserver sees no other document than the one that was checked.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from ml_assets.extras.governance.proxy.documents import read_document, read_json
from ml_assets.extras.governance.sessions import PageRefused

PROTOCOL = "graphql-ws"
MOST_BYTES = 1_000_000
"""Bytes of a message of the browser."""
MOST_ANSWER_BYTES = 64_000_000
END_SECONDS = 1.0
"""Longest wait for the webserver's part in closing a connection."""
CHECK_SECONDS = 5.0
"""Time between two looks at the session and the account of an open connection."""
_PLAIN = ("connection_init", "connection_terminate", "stop")
StillHere = Callable[[], Awaitable[bool]]


async def connect(browser: WebSocket, address: str, is_still_here: StillHere) -> None:
    """Carry subscriptions between a browser and the webserver at `address`, until one of them or the session ends."""
    from websockets.asyncio.client import connect as open_connection
    from websockets.exceptions import WebSocketException
    from websockets.typing import Subprotocol

    try:
        async with open_connection(
            address,
            subprotocols=[Subprotocol(PROTOCOL)],
            proxy=None,
            max_size=MOST_ANSWER_BYTES,
            close_timeout=END_SECONDS,
            user_agent_header=None,
        ) as server:
            await browser.accept(subprotocol=PROTOCOL if PROTOCOL in browser["subprotocols"] else None)
            parts = {
                asyncio.create_task(one)
                for one in (
                    _upwards(browser, server),
                    _downwards(browser, server),
                    _until_gone(is_still_here),
                )
            }
            try:
                done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in parts:
                    one.cancel()
                await asyncio.gather(*parts, return_exceptions=True)
            for one in done:
                if (error := one.exception()) and not isinstance(
                    error, WebSocketDisconnect | WebSocketException
                ):
                    raise error
    except (OSError, WebSocketException):
        pass  # the webserver is away: the browser connects again
    with suppress(RuntimeError, WebSocketDisconnect):
        if browser.application_state != WebSocketState.DISCONNECTED:
            await browser.close(1001)


async def _upwards(browser: WebSocket, server: Any) -> None:
    while True:
        text = await browser.receive_text()
        if len(text) > MOST_BYTES:
            return
        try:
            checked = await run_in_threadpool(checked_message, text)
        except PageRefused as refused:
            message = read_id(text) | {"type": "error", "payload": {"message": str(refused)}}
            await browser.send_text(json.dumps(message))
            continue
        await server.send(checked)


async def _downwards(browser: WebSocket, server: Any) -> None:
    async for message in server:
        await browser.send_text(message if isinstance(message, str) else message.decode())


async def _until_gone(is_still_here: StillHere) -> None:
    while await is_still_here():
        await asyncio.sleep(CHECK_SECONDS)


def checked_message(text: str) -> str:
    """Return a message for the webserver. Raise `PageRefused` for all but subscriptions and their ends."""
    message: Any = read_json(text.encode())
    kind: object = message.get("type") if isinstance(message, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if kind in _PLAIN:
        return json.dumps(read_id(text) | {"type": kind})
    payload: Any = message.get("payload") if kind == "start" else None
    if not isinstance(payload, dict) or not isinstance(payload.get("query"), str):  # pyright: ignore[reportUnknownMemberType]
        raise PageRefused(400, f"the proxy knows no message {str(kind)[:40]!a} of {PROTOCOL}")
    variables: Any = payload.get("variables") or {}  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    name: Any = payload.get("operationName")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if not isinstance(variables, dict) or not (name is None or isinstance(name, str)):
        raise PageRefused(400, "`variables` is an object, and `operationName` a text")
    document = read_document(payload["query"], variables, name)  # pyright: ignore[reportUnknownArgumentType]
    if document.kinds != {"subscription"}:
        raise PageRefused(403, "only subscriptions go over a websocket: send queries and mutations by POST")
    # The webserver reads the name under another key than the browser writes it.
    asked = {"query": document.query, "variables": variables, "operation_name": name, "operationName": name}
    return json.dumps(read_id(text) | {"type": "start", "payload": asked})


def read_id(text: str) -> dict[str, str]:
    """Return the part of a message that names its subscription; nothing if it names none."""
    with suppress(PageRefused):
        message: Any = read_json(text.encode())
        if isinstance(message, dict) and isinstance(message.get("id"), str | int):  # pyright: ignore[reportUnknownMemberType]
            return {"id": str(message["id"])}  # pyright: ignore[reportUnknownArgumentType]
    return {}
