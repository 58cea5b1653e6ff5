from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx

from ... import errors
from ...client import AuthenticatedClient, Client
from ...models.list_page_commit_document import ListPageCommitDocument
from ...models.problem_document import ProblemDocument
from ...types import UNSET, Response, Unset


def _get_kwargs(
    table: str,
    *,
    limit: int | Unset = 50,
    cursor: str | Unset = "",
) -> dict[str, Any]:

    params: dict[str, Any] = {}

    params["limit"] = limit

    params["cursor"] = cursor

    params = {k: v for k, v in params.items() if v is not UNSET and v is not None}

    _kwargs: dict[str, Any] = {
        "method": "get",
        "url": "/api/v1/features/{table}/versions".format(
            table=quote(str(table), safe=""),
        ),
        "params": params,
    }

    return _kwargs


def _parse_response(
    *, client: AuthenticatedClient | Client, response: httpx.Response
) -> ListPageCommitDocument | ProblemDocument | None:
    if response.status_code == 200:
        response_200 = ListPageCommitDocument.from_dict(response.json())

        return response_200

    if response.status_code == 400:
        response_400 = ProblemDocument.from_dict(response.json())

        return response_400

    if response.status_code == 401:
        response_401 = ProblemDocument.from_dict(response.json())

        return response_401

    if response.status_code == 403:
        response_403 = ProblemDocument.from_dict(response.json())

        return response_403

    if response.status_code == 404:
        response_404 = ProblemDocument.from_dict(response.json())

        return response_404

    if response.status_code == 413:
        response_413 = ProblemDocument.from_dict(response.json())

        return response_413

    if response.status_code == 422:
        response_422 = ProblemDocument.from_dict(response.json())

        return response_422

    if response.status_code == 429:
        response_429 = ProblemDocument.from_dict(response.json())

        return response_429

    if response.status_code == 503:
        response_503 = ProblemDocument.from_dict(response.json())

        return response_503

    if response.status_code == 504:
        response_504 = ProblemDocument.from_dict(response.json())

        return response_504

    if client.raise_on_unexpected_status:
        raise errors.UnexpectedStatus(response.status_code, response.content)
    return None


def _build_response(
    *, client: AuthenticatedClient | Client, response: httpx.Response
) -> Response[ListPageCommitDocument | ProblemDocument]:
    return Response(
        status_code=HTTPStatus(response.status_code),
        content=response.content,
        headers=response.headers,
        parsed=_parse_response(client=client, response=response),
    )


def sync_detailed(
    table: str,
    *,
    client: AuthenticatedClient,
    limit: int | Unset = 50,
    cursor: str | Unset = "",
) -> Response[ListPageCommitDocument | ProblemDocument]:
    """Commits that changed a table of features, newest first

    Args:
        table (str):
        limit (int | Unset): Most items of the page. Default: 50.
        cursor (str | Unset): `next` of the page before; empty for the first page. Default: ''.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[ListPageCommitDocument | ProblemDocument]
    """

    kwargs = _get_kwargs(
        table=table,
        limit=limit,
        cursor=cursor,
    )

    response = client.get_httpx_client().request(
        **kwargs,
    )

    return _build_response(client=client, response=response)


def sync(
    table: str,
    *,
    client: AuthenticatedClient,
    limit: int | Unset = 50,
    cursor: str | Unset = "",
) -> ListPageCommitDocument | ProblemDocument | None:
    """Commits that changed a table of features, newest first

    Args:
        table (str):
        limit (int | Unset): Most items of the page. Default: 50.
        cursor (str | Unset): `next` of the page before; empty for the first page. Default: ''.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        ListPageCommitDocument | ProblemDocument
    """

    return sync_detailed(
        table=table,
        client=client,
        limit=limit,
        cursor=cursor,
    ).parsed


async def asyncio_detailed(
    table: str,
    *,
    client: AuthenticatedClient,
    limit: int | Unset = 50,
    cursor: str | Unset = "",
) -> Response[ListPageCommitDocument | ProblemDocument]:
    """Commits that changed a table of features, newest first

    Args:
        table (str):
        limit (int | Unset): Most items of the page. Default: 50.
        cursor (str | Unset): `next` of the page before; empty for the first page. Default: ''.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[ListPageCommitDocument | ProblemDocument]
    """

    kwargs = _get_kwargs(
        table=table,
        limit=limit,
        cursor=cursor,
    )

    response = await client.get_async_httpx_client().request(**kwargs)

    return _build_response(client=client, response=response)


async def asyncio(
    table: str,
    *,
    client: AuthenticatedClient,
    limit: int | Unset = 50,
    cursor: str | Unset = "",
) -> ListPageCommitDocument | ProblemDocument | None:
    """Commits that changed a table of features, newest first

    Args:
        table (str):
        limit (int | Unset): Most items of the page. Default: 50.
        cursor (str | Unset): `next` of the page before; empty for the first page. Default: ''.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        ListPageCommitDocument | ProblemDocument
    """

    return (
        await asyncio_detailed(
            table=table,
            client=client,
            limit=limit,
            cursor=cursor,
        )
    ).parsed
