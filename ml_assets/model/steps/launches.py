"""Record of each launch of a training: code, lock, packages, machine, person. Written once and never changed.

A launch of a finished training trains nothing and writes no record, so a later click adds nothing to the origin of the
weights. The evaluation's row in the ledger has the SHA-256 of each record. Not here: attempts within a launch
(`ml_assets.model.training.attempt`), MLflow's tags, which only show these facts (`train`).
"""

import hashlib
import json
import platform as interpreter
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Self

from ml_assets.foundation.checkout import ROOT
from ml_assets.foundation.links import read_artifact
from resources.artifacts import ArtifactMissing
from resources.environment import LeftOut, code_state, installed_packages, lock_of, machine
from resources.job.events import RESULT, training_folder_name
from resources.job.job import TrainingJob
from resources.ledger import CheckedBy
from resources.platform import Platform

LAUNCHES = "launches"
"""Folder of all records among the artifacts, with a folder for each training."""
SOURCES = "sources"
"""Folder of locks and differences of code among the artifacts, each under its SHA-256."""
LOCK, DIFFERENCE = "requirements.txt", "code.diff"


class LaunchUnknown(Exception):
    """A record of a launch, or a file that it names, is gone or was altered."""


@dataclass(frozen=True, kw_only=True)
class LaunchRecord:
    """One launch of a training that was not finished."""

    at: str
    """Time, ISO 8601, UTC."""
    run_id: str
    """Dagster run."""
    author: str
    checked_by: CheckedBy
    """Proof of the author's identity."""
    commit: str
    """Git commit of the code; empty if nothing names one."""
    is_dirty: bool
    """True if files differed from the commit."""
    difference: str
    """SHA-256 of what differed, as `git apply` reads it; empty for a clean tree, or without a work tree."""
    left_out: tuple[LeftOut, ...]
    """Changed or new files that are not in the difference."""
    lock: str
    """SHA-256 of the locked requirements; empty without a lock."""
    packages: dict[str, str]
    """Name → version of each installed distribution."""
    python: str
    machine: str
    workers: int

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the content of a record."""
        facts: dict[str, Any] = json.loads(text)
        facts["left_out"] = tuple(LeftOut(**one) for one in facts["left_out"])
        return cls(**facts)


def record_launch(platform: Platform, job: TrainingJob, run_id: str) -> None:
    """Write the record of a launch that begins now, unless the training is finished."""
    if platform.artifacts.exists(training_folder_name(job), RESULT):
        return
    code, lock = code_state(ROOT, platform.settings.commit), lock_of(ROOT)
    now = datetime.now(UTC)
    launch = LaunchRecord(
        at=now.isoformat(),
        run_id=run_id,
        author=platform.acting.name,
        checked_by=platform.acting.checked_by,
        commit=code.commit,
        is_dirty=code.is_dirty,
        difference=_keep(platform, DIFFERENCE, code.difference),
        left_out=code.left_out,
        lock=_keep(platform, LOCK, lock or b""),
        packages=installed_packages(),
        python=interpreter.python_version(),
        machine=machine(),
        workers=job.settings.workers,
    )
    file = f"{now:%Y%m%dT%H%M%S%f}-{uuid.uuid4().hex[:4]}.json"
    _write_once(
        platform,
        _folder(job.model, job.fingerprint),
        file,
        json.dumps(asdict(launch), sort_keys=True, indent=1).encode(),
    )


def launches_of(platform: Platform, job: TrainingJob) -> tuple[str, ...]:
    """Return the SHA-256 of each record of a training's launches, oldest first."""
    name = _folder(job.model, job.fingerprint)
    return tuple(
        hashlib.sha256(read_artifact(platform.artifacts, name, file)).hexdigest()
        for file in sorted(platform.artifacts.files(name))
    )


def read_launches(
    platform: Platform, model: str, fingerprint: str, digests: Iterable[str]
) -> list[LaunchRecord]:
    """Return the launches whose records have `digests`. Raises `LaunchUnknown` if one is gone or was altered."""
    name = _folder(model, fingerprint)
    contents = [
        read_artifact(platform.artifacts, name, file) for file in sorted(platform.artifacts.files(name))
    ]
    found = {hashlib.sha256(content).hexdigest(): content for content in contents}
    wanted = list(digests)
    if lost := [digest[:12] for digest in wanted if digest not in found]:
        raise LaunchUnknown(
            f"the record {', '.join(lost)} of a launch of {model} {fingerprint[:12]} is gone from "
            f"{platform.artifacts.address(name)}, or was altered: restore the folder from a copy"
        )
    return [LaunchRecord.from_json(found[digest].decode()) for digest in wanted]


def source(platform: Platform, digest: str, file: str) -> bytes:
    """Return the locked requirements or the difference with this SHA-256. Raises `LaunchUnknown`."""
    try:
        content = read_artifact(platform.artifacts, f"{SOURCES}/{digest}", file)
    except ArtifactMissing as missing:
        raise LaunchUnknown(f"{missing}: restore it from a copy") from missing
    if hashlib.sha256(content).hexdigest() != digest:
        raise LaunchUnknown(
            f"{platform.artifacts.address(f'{SOURCES}/{digest}')}/{file} was altered: restore it from a copy"
        )
    return content


def _folder(model: str, fingerprint: str) -> str:
    return f"{LAUNCHES}/{model}/{fingerprint[:16]}"


def _keep(platform: Platform, file: str, content: bytes) -> str:
    """Store `content` under its SHA-256, and return that; empty for no content."""
    if not content:
        return ""
    digest = hashlib.sha256(content).hexdigest()
    if not platform.artifacts.exists(f"{SOURCES}/{digest}", file):
        _write_once(platform, f"{SOURCES}/{digest}", file, content)
    return digest


def _write_once(platform: Platform, name: str, file: str, content: bytes) -> None:
    with platform.artifacts.create(name, file) as stream:
        stream.write(content)
