from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx

from ... import errors
from ...client import AuthenticatedClient, Client
from ...models.problem_document import ProblemDocument
from ...models.stage_document import StageDocument
from ...models.stage_request import StageRequest
from ...types import Response


def _get_kwargs(
    name: str,
    v: int,
    *,
    body: StageRequest,
) -> dict[str, Any]:
    headers: dict[str, Any] = {}

    _kwargs: dict[str, Any] = {
        "method": "put",
        "url": "/api/v1/models/{name}/versions/{v}/stage".format(
            name=quote(str(name), safe=""),
            v=quote(str(v), safe=""),
        ),
    }

    _kwargs["json"] = body.to_dict()

    headers["Content-Type"] = "application/json"

    _kwargs["headers"] = headers
    return _kwargs


def _parse_response(
    *, client: AuthenticatedClient | Client, response: httpx.Response
) -> ProblemDocument | StageDocument | None:
    if response.status_code == 200:
        response_200 = StageDocument.from_dict(response.json())

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
) -> Response[ProblemDocument | StageDocument]:
    return Response(
        status_code=HTTPStatus(response.status_code),
        content=response.content,
        headers=response.headers,
        parsed=_parse_response(client=client, response=response),
    )


def sync_detailed(
    name: str,
    v: int,
    *,
    client: AuthenticatedClient,
    body: StageRequest,
) -> Response[ProblemDocument | StageDocument]:
    """Approve, reject, promote or archive a version

    Args:
        name (str):
        v (int):
        body (StageRequest): Decision about a version. `approved` and `rejected` are reviews of
            its newest evaluation, and leave its stage.
            `production` promotes: by the rules in force, the version may become the canary first.
            `archived` is final.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[ProblemDocument | StageDocument]
    """

    kwargs = _get_kwargs(
        name=name,
        v=v,
        body=body,
    )

    response = client.get_httpx_client().request(
        **kwargs,
    )

    return _build_response(client=client, response=response)


def sync(
    name: str,
    v: int,
    *,
    client: AuthenticatedClient,
    body: StageRequest,
) -> ProblemDocument | StageDocument | None:
    """Approve, reject, promote or archive a version

    Args:
        name (str):
        v (int):
        body (StageRequest): Decision about a version. `approved` and `rejected` are reviews of
            its newest evaluation, and leave its stage.
            `production` promotes: by the rules in force, the version may become the canary first.
            `archived` is final.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        ProblemDocument | StageDocument
    """

    return sync_detailed(
        name=name,
        v=v,
        client=client,
        body=body,
    ).parsed


async def asyncio_detailed(
    name: str,
    v: int,
    *,
    client: AuthenticatedClient,
    body: StageRequest,
) -> Response[ProblemDocument | StageDocument]:
    """Approve, reject, promote or archive a version

    Args:
        name (str):
        v (int):
        body (StageRequest): Decision about a version. `approved` and `rejected` are reviews of
            its newest evaluation, and leave its stage.
            `production` promotes: by the rules in force, the version may become the canary first.
            `archived` is final.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[ProblemDocument | StageDocument]
    """

    kwargs = _get_kwargs(
        name=name,
        v=v,
        body=body,
    )

    response = await client.get_async_httpx_client().request(**kwargs)

    return _build_response(client=client, response=response)


async def asyncio(
    name: str,
    v: int,
    *,
    client: AuthenticatedClient,
    body: StageRequest,
) -> ProblemDocument | StageDocument | None:
    """Approve, reject, promote or archive a version

    Args:
        name (str):
        v (int):
        body (StageRequest): Decision about a version. `approved` and `rejected` are reviews of
            its newest evaluation, and leave its stage.
            `production` promotes: by the rules in force, the version may become the canary first.
            `archived` is final.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        ProblemDocument | StageDocument
    """

    return (
        await asyncio_detailed(
            name=name,
            v=v,
            client=client,
            body=body,
        )
    ).parsed
