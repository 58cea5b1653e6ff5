"""Documents of requests and answers, types of the parts of a path, and pages of lists.

Every list has pages: `items`, and `next`, the `cursor` of the page after it. A cursor names the last item of its page,
so items that come meanwhile repeat none and hide none. Times are UTC. Not here: problems (`problems`).
"""

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from fastapi import Path, Query
from pydantic import BaseModel, ConfigDict, Field

from ml_assets.extras.api.problems import ApiRefused

Item = TypeVar("Item")
MOST_ITEMS = 200
_PLAIN = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"
Name = Annotated[str, Path(pattern=_PLAIN, max_length=100, examples=["store_demand"])]
"""Name of a model, a table or an experiment in a path."""
Key = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]*$", max_length=40, examples=["2024-01-08"])]
Number = Annotated[int, Path(ge=1, le=2**31 - 1, examples=[1])]
RunId = Annotated[str, Path(pattern=r"^[0-9a-f-]{8,64}$", examples=["0d3c5d9e-4f7e-4c0e-9d0a-3f1f5a1c2b3d"])]
TrackedId = Annotated[str, Path(pattern=r"^[0-9a-f]{8,64}$", examples=["9c1c2b3d4e5f60718293a4b5c6d7e8f9"])]
Step = Annotated[int, Path(ge=1, le=2**31 - 1, examples=[40])]
Limit = Annotated[int, Query(ge=1, le=MOST_ITEMS, description="Most items of the page.")]
Cursor = Annotated[
    str, Query(max_length=500, description="`next` of the page before; empty for the first page.")
]


class Shape(BaseModel):
    """Document of a request or an answer."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ListPage(Shape, Generic[Item]):
    """Part of a list."""

    items: list[Item]
    next: str | None = Field(description="Cursor of the next page; null at the end.")


class RunDocument(Shape):
    """Run."""

    id: str
    state: Literal["queued", "running", "completed", "failed", "killed"]
    model: str = Field(description="Model that it trains; empty if it trains none.")
    assets: list[str]
    partitions: str
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    why: str = Field(description="Sentence of the step that failed.")
    launched_by: str | None = Field(description="Person who launched it through API or proxy.")
    stopped_by: str | None
    version: int | None = Field(description="Version that it registered.")
    rejected: str = Field(
        description="Reason for which the gates rejected the model, so that it is no version; empty otherwise."
    )
    restored_from: str = Field(
        description="`RUN/STEP` of the checkpoint with which its training began; empty for step 0."
    )
    page: str = Field(description="Its page in Dagster.")


class TrialDocument(Shape):
    """Trial of a study."""

    number: int
    state: Literal["running", "finished", "paused", "failed"]
    parameters: dict[str, Any] = Field(description="Values that it tries; empty while its study runs.")
    loss: float | None = Field(description="Lowest validation loss so far.")
    value: float | None = Field(
        description="Value of the study's metric for the best epoch: the loss so far, or null until the trial finished."
    )
    step: int = Field(description="Newest step.")
    why: str = Field(description="Reason of a failure or of a pause.")


class StudyDocument(Shape):
    """Study of hyperparameters."""

    run: RunDocument
    model: str
    metric: str = Field(description="Metric by which trials are compared.")
    direction: str = Field(description="`minimize`: less is better; `maximize`: more is better.")
    trials: list[TrialDocument] = Field(
        description="By number; while the study runs, those of its newest 10,000 points."
    )
    chosen: int | None = Field(description="Number of the chosen trial; null before there is a result.")
    because: str = Field(description="Reason of the choice.")


class StageRequest(Shape):
    """Decision about a version. `approved` and `rejected` are reviews of its newest evaluation, and leave its stage.
    `production` promotes: by the rules in force, the version may become the canary first. `archived` is final."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"stage": "production", "reason": "better on the holdout"}]}
    )

    stage: Literal["approved", "rejected", "production", "archived"]
    reason: str = Field(
        min_length=1, max_length=500, description="Recorded with your name in an append-only log."
    )


class StageDocument(Shape):
    """Stage of a version after a decision."""

    model: str
    version: int
    stage: str = Field(description="`production`, `canary`, `staging` or `archived`.")
    changed: bool = Field(description="False if an earlier decision had the same result.")
    by: str
    reason: str
    at: datetime
    notes: list[str] = Field(
        description="Changes that break clients, and metrics of a canary that have no evidence."
    )


class ModelDocument(Shape):
    """Model that is declared, or about which the ledger has decisions."""

    name: str
    declared: bool
    production: str | None = Field(description="Version in production.")
    canary: str | None


class VersionDocument(Shape):
    """Registered version."""

    model: str
    version: int
    semantic: str
    stage: str
    bundle_digest: str
    tracking_run: str = Field(description="Id of the run in the experiment of the model.")


class RuleDocument(Shape):
    """One gate with its outcome."""

    rule: str
    slice: str
    result: str
    asks: str
    found: str
    would_pass: str


class VersionDetails(VersionDocument):
    """Registered version with the evaluation that counts for it."""

    evaluation: str
    status: str = Field(description="Decision of the gates: `blessed`, `undecided` or `rejected`.")
    summary: str
    rules: list[RuleDocument]
    partition: str
    table: str = Field(description="Feature table of its window.")
    first: str
    last: str
    lake_commit: str
    snapshot_digest: str = Field(
        description="Digest of its training set. Empty, as are the next two, if Dagster lost its run."
    )
    schema_hash: str = Field(description="Digest of names and types of the columns of the training set.")
    split_config_hash: str = Field(description="Digest of the rules by which its rows were split.")
    dagster_run: str
    author: str
    at: datetime


class CommitDocument(Shape):
    """Version of a table: a commit of the lake that changed it."""

    commit: str
    at: datetime
    message: str
    partitions: list[str]
    rows: int | None = Field(
        description="Rows of the partitions that it wrote; null if it names none, such as a merge."
    )
    bytes: int | None = Field(description="Bytes of their files.")
    schema_hash: str = Field(description="Digest of names and types of their columns; empty without any.")
    run_id: str
    author: str
    reason: str
    code_version: str


class VerdictDocument(Shape):
    """Newest verdict on a partition."""

    table: str
    partition: str
    status: str = Field(description="`passed`, `warned`, `rejected` or `accepted`.")
    number: int
    at: datetime
    rows: int
    content_digest: str
    run_id: str
    accepted_by: str | None
    findings: list[dict[str, Any]]


class EstimateDocument(Shape):
    """Expected value with an interval of 80 %."""

    middle: float = Field(description="Median of the history.")
    low: float | None = Field(description="Lower end; null if the history is a single training.")
    high: float | None


class ExpectedDocument(Shape):
    """Expectation of a training, from trainings of its pipeline that completed."""

    trainings: int = Field(description="Trainings that count; 0: no history.")
    is_alike: bool = Field(
        description="True if they had the same model function and as many workers; else they are all of the pipeline."
    )
    hours: EstimateDocument | None = Field(description="Hours in which it holds places.")
    money: EstimateDocument | None = Field(description="By the prices of now; null without prices.")
    currency: str
    start_hours: EstimateDocument | None = Field(
        description="Hours from the launch to the first place; null without a queue."
    )
    fault: str = Field(description="Reason for which the history could not be read; empty if it could.")


class PlanDocument(Shape):
    """Reads and steps of a launch of a model, and the reasons against it."""

    model: str
    partition: str
    commit: str = Field(description="Commit of the lake.")
    ready: bool = Field(description="False if the launch would refuse.")
    done: bool = Field(description="True if the partition was evaluated before.")
    is_as_trained: bool = Field(description="True if a launch would find the finished training.")
    explanation: str
    refused: dict[str, str] = Field(
        description="`table key` to reason, for rejected and unusable partitions."
    )
    to_build: dict[str, list[str]]
    to_rebuild: dict[str, list[str]]
    faults: list[str]
    first_possible: str | None
    expected: ExpectedDocument | None = Field(
        description="Hours, money and start of the training; null if a launch would find it finished."
    )


class ExperimentRun(Shape):
    """Training as MLflow has it."""

    id: str
    name: str
    status: Literal["RUNNING", "SCHEDULED", "FINISHED", "FAILED", "KILLED"]
    started_at: datetime | None
    ended_at: datetime | None
    metrics: dict[str, float | None]
    data_version: str = Field(description="Digest of the rows that it read.")
    lake_commit: str
    git_commit: str
    dagster_run: str


class ExperimentRunDetails(ExperimentRun):
    """Training as MLflow has it, with its parameters and files."""

    params: dict[str, str]
    tags: dict[str, str]
    artifacts: dict[str, int] = Field(description="File to bytes.")
    training_folder: str = Field(description="Address of checkpoints and events.")


class CheckpointDocument(Shape):
    """Checkpoint of a training."""

    step: int
    epoch: int | None
    loss: float | None = Field(description="Validation loss of the newest epoch at that step.")
    bytes: int
    at: datetime
    kept: list[str] = Field(description="Reasons for which it was not deleted: `newest`, `best`, `resumed`.")


def number_or_none(value: float) -> float | None:
    """Return a number that JSON can write; None for infinity and not-a-number."""
    return value if math.isfinite(value) else None


def cursor_of(after: str) -> str:
    """Return the cursor of the page after an item."""
    return base64.urlsafe_b64encode(json.dumps(after).encode()).decode().rstrip("=")


def after_of(cursor: str, pattern: str = r".+") -> str | None:
    """Return the item that a cursor names; None for the first page. Raise `ApiRefused` for any other text."""
    if not cursor:
        return None
    try:
        after: object = json.loads(
            base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars="-_", validate=True)
        )
    except (binascii.Error, ValueError, RecursionError):
        after = None
    if not isinstance(after, str) or not re.fullmatch(pattern, after):
        raise ApiRefused(
            422, "invalid_cursor", "the cursor is not `next` of a page of this list: begin without it"
        )
    return after


def page_of(
    found: Iterable[Item], name: Callable[[Item], str], cursor: str, limit: int
) -> tuple[Sequence[Item], str | None]:
    """Return a page of items, sorted by their unique names, and the cursor of the next one."""
    after = after_of(cursor)
    sorted_items = sorted((one for one in found if after is None or name(one) > after), key=name)
    items = sorted_items[:limit]
    return items, cursor_of(name(items[-1])) if len(sorted_items) > limit else None
