from http import HTTPStatus
from typing import Any

import httpx

from ... import errors
from ...client import AuthenticatedClient, Client
from ...models.plan_document import PlanDocument
from ...models.problem_document import ProblemDocument
from ...types import UNSET, Response, Unset


def _get_kwargs(
    *,
    model: str,
    partition: None | str | Unset = UNSET,
) -> dict[str, Any]:

    params: dict[str, Any] = {}

    params["model"] = model

    json_partition: str | Unset | None
    if isinstance(partition, Unset):
        json_partition = UNSET
    else:
        json_partition = partition
    params["partition"] = json_partition

    params = {k: v for k, v in params.items() if v is not UNSET and v is not None}

    _kwargs: dict[str, Any] = {
        "method": "get",
        "url": "/api/v1/plan",
        "params": params,
    }

    return _kwargs


def _parse_response(
    *, client: AuthenticatedClient | Client, response: httpx.Response
) -> PlanDocument | ProblemDocument | None:
    if response.status_code == 200:
        response_200 = PlanDocument.from_dict(response.json())

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
) -> Response[PlanDocument | ProblemDocument]:
    return Response(
        status_code=HTTPStatus(response.status_code),
        content=response.content,
        headers=response.headers,
        parsed=_parse_response(client=client, response=response),
    )


def sync_detailed(
    *,
    client: AuthenticatedClient,
    model: str,
    partition: None | str | Unset = UNSET,
) -> Response[PlanDocument | ProblemDocument]:
    """What a launch of a model would read and run, and why

    Args:
        model (str):
        partition (None | str | Unset): Default: the newest.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[PlanDocument | ProblemDocument]
    """

    kwargs = _get_kwargs(
        model=model,
        partition=partition,
    )

    response = client.get_httpx_client().request(
        **kwargs,
    )

    return _build_response(client=client, response=response)


def sync(
    *,
    client: AuthenticatedClient,
    model: str,
    partition: None | str | Unset = UNSET,
) -> PlanDocument | ProblemDocument | None:
    """What a launch of a model would read and run, and why

    Args:
        model (str):
        partition (None | str | Unset): Default: the newest.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        PlanDocument | ProblemDocument
    """

    return sync_detailed(
        client=client,
        model=model,
        partition=partition,
    ).parsed


async def asyncio_detailed(
    *,
    client: AuthenticatedClient,
    model: str,
    partition: None | str | Unset = UNSET,
) -> Response[PlanDocument | ProblemDocument]:
    """What a launch of a model would read and run, and why

    Args:
        model (str):
        partition (None | str | Unset): Default: the newest.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[PlanDocument | ProblemDocument]
    """

    kwargs = _get_kwargs(
        model=model,
        partition=partition,
    )

    response = await client.get_async_httpx_client().request(**kwargs)

    return _build_response(client=client, response=response)


async def asyncio(
    *,
    client: AuthenticatedClient,
    model: str,
    partition: None | str | Unset = UNSET,
) -> PlanDocument | ProblemDocument | None:
    """What a launch of a model would read and run, and why

    Args:
        model (str):
        partition (None | str | Unset): Default: the newest.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        PlanDocument | ProblemDocument
    """

    return (
        await asyncio_detailed(
            client=client,
            model=model,
            partition=partition,
        )
    ).parsed
