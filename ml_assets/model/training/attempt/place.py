"""Place of an exception: its type, the innermost line of the user's code, and the newest step.

A failure that repeats at the same place is deterministic: the launcher ends the training at its second occurrence.
Three attempts of a training with a typo in its validation cost three times its first epoch.

Here: the place, and the errors that have none because another attempt may succeed. Not here: exit codes (exit_code),
the decision (the launcher).
"""

import re
import sysconfig
import traceback

import torch
from torch import distributed

from ml_assets.model.training.process.group import chain_of, is_lost_peer
from resources.job.errors import TrainingFailed

TRANSIENT = (TrainingFailed, OSError, torch.AcceleratorError, distributed.DistError)
"""Errors after which another attempt may succeed: of files, networks, devices and lost workers. A `TrainingFailed` has
its own rule."""
_OF_LOCAL_FILES = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
"""Errors of files that are the same in each attempt if they repeat at the same place."""
_OF_SERVERS = re.compile(
    "Connect|Time(d|-)?out|Unavailable|Network|Throttl|OperationalError|ProtocolError|IncompleteRead"
)
"""Names of types of errors with which clients of servers say the same as `OSError`, without being one."""
_ASK_AGAIN = {408, 425, 429, *range(500, 600)}
"""Status codes of HTTP with which a server refuses a request that it may answer later."""
_OF_DEVICES = re.compile(r"^DataLoader worker \(pid|\b(CUDA|NCCL|CUDNN|cuDNN|CUBLAS|CUSOLVER|CUFFT)")
"""Words in a `RuntimeError` of torch about a device, or about a process that a signal killed while it loaded data."""
_LIBRARIES = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_PLATFORM = ("resources", "ml_assets.model.training", "ml_assets.data.snapshots")
"""Packages of the platform whose frames are not the user's code."""


def place_of(error: BaseException, step: int) -> str:
    """Return where `error` was raised, after `step`, in words that are equal for an equal failure; empty if another
    attempt may succeed, as for errors of networks."""
    if not isinstance(error, Exception) or any(map(_is_transient, chain_of(error))) or is_lost_peer(error):
        return ""
    frames = list(traceback.walk_tb(error.__traceback__))
    if not frames:
        return ""
    users = [
        (frame, line) for frame, line in frames if _is_of_user(frame.f_code.co_filename, frame.f_globals)
    ]
    frame, line = (users or frames)[-1]
    return f"{type(error).__name__} at {frame.f_code.co_filename}:{line} after step {step}"


def _is_transient(error: BaseException) -> bool:
    if isinstance(error, _OF_LOCAL_FILES):
        return False
    if isinstance(error, TRANSIENT) or _status(error) in _ASK_AGAIN:
        return True
    if isinstance(error, RuntimeError) and _OF_DEVICES.search(str(error)):
        return True
    return any(_OF_SERVERS.search(one.__name__) for one in type(error).__mro__)


def _status(error: BaseException) -> int | None:
    """Return the status code of HTTP that an error of a client holds, in the ways of urllib, requests, httpx and
    botocore; None without one."""
    try:
        response = getattr(error, "response", None)
        if isinstance(response, dict):
            found = response.get("ResponseMetadata", {}).get("HTTPStatusCode")  # pyright: ignore
        else:
            found = getattr(response, "status_code", getattr(error, "code", None))
    except Exception:  # an attribute of another kind of error, whose own failure would hide this one
        return None
    return found if isinstance(found, int) else None  # pyright: ignore


def _is_of_user(file: str, names: dict[str, object]) -> bool:
    name = str(names.get("__name__", ""))
    is_platform = any(name == one or name.startswith(f"{one}.") for one in _PLATFORM)
    return not (is_platform or file.startswith(("<", *_LIBRARIES)))
