"""Place of an error: equal for an equal failure, empty where another attempt may succeed."""

import json
import socket
import threading
from collections.abc import Callable

import pytest
import torch
from botocore.exceptions import ClientError, EndpointConnectionError
from sqlalchemy.exc import OperationalError
from torch import distributed
from torch.utils.data import DataLoader

from ml_assets.model.training.attempt.exit_code import place_of
from resources.job.errors import StorageFailed


def caught(action: Callable[[], object]) -> BaseException:
    try:
        action()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def test_a_place_is_the_innermost_line_of_the_users_code() -> None:
    error = caught(lambda: json.loads("{"))
    first = place_of(error, 7)
    assert first.startswith(f"JSONDecodeError at {__file__}:")
    assert first.endswith(" after step 7")
    assert place_of(caught(lambda: json.loads("[")), 7) != first  # another line
    assert place_of(error, 8) != first


def test_a_place_of_a_library_without_users_code_is_its_own_line() -> None:
    error = caught(lambda: json.loads("{"))
    assert error.__traceback__ is not None
    inside = error.__traceback__.tb_next and error.__traceback__.tb_next.tb_next
    assert "/json/" in place_of(error.with_traceback(inside), 1)


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError("by the server"),
        TimeoutError("no answer"),
        socket.gaierror("no such host"),
        OSError(5, "Input/output error"),
        KeyboardInterrupt(),
        SystemExit(1),
        StorageFailed("the store is away"),
        distributed.DistNetworkError("the other rank is gone"),
        torch.AcceleratorError("uncorrectable ECC error"),
        RuntimeError("DataLoader worker (pid 12) is killed by signal: Killed."),
        RuntimeError("Connection closed by peer"),
        ClientError({"ResponseMetadata": {"HTTPStatusCode": 503}}, "GetObject"),
        EndpointConnectionError(endpoint_url="http://store"),
        OperationalError("SELECT 1", None, Exception("the server closed the connection")),
        RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
        RuntimeError("NCCL error in: ProcessGroupNCCL.cpp: unhandled system error"),
    ],
)
def test_errors_that_another_attempt_may_not_meet_have_no_place(error: BaseException) -> None:
    def fail() -> None:
        raise error

    def wrap() -> None:
        try:
            fail()
        except Exception as inner:
            raise RuntimeError("the data could not be read") from inner

    assert place_of(caught(fail), 3) == ""
    if isinstance(error, Exception):
        assert place_of(caught(wrap), 3) == ""  # as libraries of HTTP raise their own types


@pytest.mark.parametrize(
    "error",
    [
        KeyError("loss"),
        FileNotFoundError("vocabulary.json"),
        RuntimeError("shapes"),
        ClientError({"ResponseMetadata": {"HTTPStatusCode": 404}}, "GetObject"),
    ],
)
def test_errors_of_code_have_a_place(error: Exception) -> None:
    def fail() -> None:
        raise error

    assert place_of(caught(fail), 3).startswith(type(error).__name__)


class CountedRows(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        raise KeyError(index)


def test_an_error_in_a_process_that_loads_data_has_a_place() -> None:
    assert place_of(caught(lambda: list(DataLoader(CountedRows(), num_workers=1))), 0).startswith(
        "KeyError at "
    )


class _Odd(Exception):
    """Error of a library whose attributes have the names of a client's, and hold something else."""

    def __init__(self, **attributes: object) -> None:
        super().__init__(", ".join(attributes))
        self.__dict__.update(attributes)


class _Unanswered(Exception):
    @property
    def response(self) -> object:
        raise RuntimeError("no response yet")


@pytest.mark.parametrize(
    "error",
    [
        _Odd(code={"status": 503}),
        _Odd(code="503"),
        _Odd(response={"ResponseMetadata": None}),
        _Odd(response={}),
        _Unanswered(),
    ],
)
def test_odd_attributes_of_an_error_do_not_hide_it(error: Exception) -> None:
    def fail() -> None:
        raise error

    assert place_of(caught(fail), 3).startswith(f"{type(error).__name__} at {__file__}:")


def test_errors_that_name_each_other_as_their_cause_have_an_end() -> None:
    """The rank looked for the first error for ever, until its agent killed it."""

    def fail() -> None:
        first = ValueError("first")
        try:
            raise KeyError("last") from first
        except KeyError as last:
            raise first from last

    found: list[str] = []
    error = caught(fail)
    thread = threading.Thread(target=lambda: found.append(place_of(error, 3)), daemon=True)
    thread.start()
    thread.join(10)
    assert [one.partition(":")[0] for one in found] == [f"ValueError at {__file__}"]
