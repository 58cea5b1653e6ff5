import datetime
from http import HTTPStatus
from typing import Any

import httpx

from ... import errors
from ...client import AuthenticatedClient, Client
from ...models.costs_document import CostsDocument
from ...models.get_costs_by import GetCostsBy
from ...models.problem_document import ProblemDocument
from ...types import UNSET, Response, Unset


def _get_kwargs(
    *,
    by: GetCostsBy | Unset = GetCostsBy.PIPELINE,
    since: datetime.date | None | Unset = UNSET,
) -> dict[str, Any]:

    params: dict[str, Any] = {}

    json_by: str | Unset = UNSET
    if not isinstance(by, Unset):
        json_by = by.value

    params["by"] = json_by

    json_since: str | Unset | None
    if isinstance(since, Unset):
        json_since = UNSET
    elif isinstance(since, datetime.date):
        json_since = since.isoformat()
    else:
        json_since = since
    params["since"] = json_since

    params = {k: v for k, v in params.items() if v is not UNSET and v is not None}

    _kwargs: dict[str, Any] = {
        "method": "get",
        "url": "/api/v1/costs",
        "params": params,
    }

    return _kwargs


def _parse_response(
    *, client: AuthenticatedClient | Client, response: httpx.Response
) -> CostsDocument | ProblemDocument | None:
    if response.status_code == 200:
        response_200 = CostsDocument.from_dict(response.json())

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

    if response.status_code == 409:
        response_409 = ProblemDocument.from_dict(response.json())

        return response_409

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
) -> Response[CostsDocument | ProblemDocument]:
    return Response(
        status_code=HTTPStatus(response.status_code),
        content=response.content,
        headers=response.headers,
        parsed=_parse_response(client=client, response=response),
    )


def sync_detailed(
    *,
    client: AuthenticatedClient,
    by: GetCostsBy | Unset = GetCostsBy.PIPELINE,
    since: datetime.date | None | Unset = UNSET,
) -> Response[CostsDocument | ProblemDocument]:
    """What trainings reserved and cost

    Args:
        by (GetCostsBy | Unset):  Default: GetCostsBy.PIPELINE.
        since (datetime.date | None | Unset): First UTC day that counts.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[CostsDocument | ProblemDocument]
    """

    kwargs = _get_kwargs(
        by=by,
        since=since,
    )

    response = client.get_httpx_client().request(
        **kwargs,
    )

    return _build_response(client=client, response=response)


def sync(
    *,
    client: AuthenticatedClient,
    by: GetCostsBy | Unset = GetCostsBy.PIPELINE,
    since: datetime.date | None | Unset = UNSET,
) -> CostsDocument | ProblemDocument | None:
    """What trainings reserved and cost

    Args:
        by (GetCostsBy | Unset):  Default: GetCostsBy.PIPELINE.
        since (datetime.date | None | Unset): First UTC day that counts.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        CostsDocument | ProblemDocument
    """

    return sync_detailed(
        client=client,
        by=by,
        since=since,
    ).parsed


async def asyncio_detailed(
    *,
    client: AuthenticatedClient,
    by: GetCostsBy | Unset = GetCostsBy.PIPELINE,
    since: datetime.date | None | Unset = UNSET,
) -> Response[CostsDocument | ProblemDocument]:
    """What trainings reserved and cost

    Args:
        by (GetCostsBy | Unset):  Default: GetCostsBy.PIPELINE.
        since (datetime.date | None | Unset): First UTC day that counts.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[CostsDocument | ProblemDocument]
    """

    kwargs = _get_kwargs(
        by=by,
        since=since,
    )

    response = await client.get_async_httpx_client().request(**kwargs)

    return _build_response(client=client, response=response)


async def asyncio(
    *,
    client: AuthenticatedClient,
    by: GetCostsBy | Unset = GetCostsBy.PIPELINE,
    since: datetime.date | None | Unset = UNSET,
) -> CostsDocument | ProblemDocument | None:
    """What trainings reserved and cost

    Args:
        by (GetCostsBy | Unset):  Default: GetCostsBy.PIPELINE.
        since (datetime.date | None | Unset): First UTC day that counts.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        CostsDocument | ProblemDocument
    """

    return (
        await asyncio_detailed(
            client=client,
            by=by,
            since=since,
        )
    ).parsed
