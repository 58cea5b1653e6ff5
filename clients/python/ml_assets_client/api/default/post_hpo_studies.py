from http import HTTPStatus
from typing import Any

import httpx

from ... import errors
from ...client import AuthenticatedClient, Client
from ...models.problem_document import ProblemDocument
from ...models.study_document import StudyDocument
from ...models.study_request import StudyRequest
from ...types import UNSET, Response, Unset


def _get_kwargs(
    *,
    body: StudyRequest,
    idempotency_key: None | str | Unset = UNSET,
    traceparent: None | str | Unset = UNSET,
) -> dict[str, Any]:
    headers: dict[str, Any] = {}
    if not isinstance(idempotency_key, Unset):
        headers["idempotency-key"] = idempotency_key

    if not isinstance(traceparent, Unset):
        headers["traceparent"] = traceparent

    _kwargs: dict[str, Any] = {
        "method": "post",
        "url": "/api/v1/hpo/studies",
    }

    _kwargs["json"] = body.to_dict()

    headers["Content-Type"] = "application/json"

    _kwargs["headers"] = headers
    return _kwargs


def _parse_response(
    *, client: AuthenticatedClient | Client, response: httpx.Response
) -> ProblemDocument | StudyDocument | None:
    if response.status_code == 202:
        response_202 = StudyDocument.from_dict(response.json())

        return response_202

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

    if response.status_code == 502:
        response_502 = ProblemDocument.from_dict(response.json())

        return response_502

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
) -> Response[ProblemDocument | StudyDocument]:
    return Response(
        status_code=HTTPStatus(response.status_code),
        content=response.content,
        headers=response.headers,
        parsed=_parse_response(client=client, response=response),
    )


def sync_detailed(
    *,
    client: AuthenticatedClient,
    body: StudyRequest,
    idempotency_key: None | str | Unset = UNSET,
    traceparent: None | str | Unset = UNSET,
) -> Response[ProblemDocument | StudyDocument]:
    """Search hyperparameters, as the model declares it

    Args:
        idempotency_key (None | str | Unset): Text of your choice: a second request with it
            launches nothing, and answers with the first run.
        traceparent (None | str | Unset): Span of the caller, as W3C's Trace Context has it: the
            run's trace goes on from it. One that is not valid is ignored, as that standard says.
        body (StudyRequest): Study of a model: the search that its section `tuning` declares, on
            the newest window.

            Space, metric, sampler, pruner, budget and the seed of a study are declared.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[ProblemDocument | StudyDocument]
    """

    kwargs = _get_kwargs(
        body=body,
        idempotency_key=idempotency_key,
        traceparent=traceparent,
    )

    response = client.get_httpx_client().request(
        **kwargs,
    )

    return _build_response(client=client, response=response)


def sync(
    *,
    client: AuthenticatedClient,
    body: StudyRequest,
    idempotency_key: None | str | Unset = UNSET,
    traceparent: None | str | Unset = UNSET,
) -> ProblemDocument | StudyDocument | None:
    """Search hyperparameters, as the model declares it

    Args:
        idempotency_key (None | str | Unset): Text of your choice: a second request with it
            launches nothing, and answers with the first run.
        traceparent (None | str | Unset): Span of the caller, as W3C's Trace Context has it: the
            run's trace goes on from it. One that is not valid is ignored, as that standard says.
        body (StudyRequest): Study of a model: the search that its section `tuning` declares, on
            the newest window.

            Space, metric, sampler, pruner, budget and the seed of a study are declared.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        ProblemDocument | StudyDocument
    """

    return sync_detailed(
        client=client,
        body=body,
        idempotency_key=idempotency_key,
        traceparent=traceparent,
    ).parsed


async def asyncio_detailed(
    *,
    client: AuthenticatedClient,
    body: StudyRequest,
    idempotency_key: None | str | Unset = UNSET,
    traceparent: None | str | Unset = UNSET,
) -> Response[ProblemDocument | StudyDocument]:
    """Search hyperparameters, as the model declares it

    Args:
        idempotency_key (None | str | Unset): Text of your choice: a second request with it
            launches nothing, and answers with the first run.
        traceparent (None | str | Unset): Span of the caller, as W3C's Trace Context has it: the
            run's trace goes on from it. One that is not valid is ignored, as that standard says.
        body (StudyRequest): Study of a model: the search that its section `tuning` declares, on
            the newest window.

            Space, metric, sampler, pruner, budget and the seed of a study are declared.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        Response[ProblemDocument | StudyDocument]
    """

    kwargs = _get_kwargs(
        body=body,
        idempotency_key=idempotency_key,
        traceparent=traceparent,
    )

    response = await client.get_async_httpx_client().request(**kwargs)

    return _build_response(client=client, response=response)


async def asyncio(
    *,
    client: AuthenticatedClient,
    body: StudyRequest,
    idempotency_key: None | str | Unset = UNSET,
    traceparent: None | str | Unset = UNSET,
) -> ProblemDocument | StudyDocument | None:
    """Search hyperparameters, as the model declares it

    Args:
        idempotency_key (None | str | Unset): Text of your choice: a second request with it
            launches nothing, and answers with the first run.
        traceparent (None | str | Unset): Span of the caller, as W3C's Trace Context has it: the
            run's trace goes on from it. One that is not valid is ignored, as that standard says.
        body (StudyRequest): Study of a model: the search that its section `tuning` declares, on
            the newest window.

            Space, metric, sampler, pruner, budget and the seed of a study are declared.

    Raises:
        errors.UnexpectedStatus: If the server returns an undocumented status code and Client.raise_on_unexpected_status is True.
        httpx.TimeoutException: If the request takes longer than Client.timeout.

    Returns:
        ProblemDocument | StudyDocument
    """

    return (
        await asyncio_detailed(
            client=client,
            body=body,
            idempotency_key=idempotency_key,
            traceparent=traceparent,
        )
    ).parsed
