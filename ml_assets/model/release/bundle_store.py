"""Bundles at rest: the facts of each (`bundle.json`), and their store, which has each once, under its digest.

Facts follow from data, code and settings: the question that a model answers, its lineage, what breaks for clients. They
are part of the bundle's digest. Run ids and commit ids are tags of the registered version, because the same training
must give the same bundle when it runs twice. Here: facts, the folder of bundles, their digests and the checks at
reading. Not here: making a bundle (`bundle`), the choice for production (`promotion`), the transfer of files
(`resources.artifacts`).
"""

import hashlib
import json
import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from ml_assets.data.features.encoding import FittedState
from ml_assets.data.tables.user_code import version_of
from ml_assets.foundation.days import Days
from ml_assets.foundation.objective_facts import facts_of
from ml_assets.model.release.runtime import (
    DECODE,
    FACTS,
    FORMAT,
    GOLDEN,
    GRAPH,
    LISTING,
    WEIGHTS,
    BlobInput,
    BundleAltered,
    InputColumn,
    listing_of,
    read_facts,
    require_unaltered,
)
from resources.artifacts import ArtifactMissing, Artifacts
from resources.files import unfinished_folder


@dataclass(frozen=True, kw_only=True)
class Question:
    """Label, objective, classes and tokens."""

    label: str
    """Column that the model predicts."""
    objective: str
    classes: tuple[str, ...] = ()
    """Classes of the label, in the order of a prediction; empty if labels are numbers."""
    tokens: str = ""
    """Identity of the tokens that a text is read as; empty if rows are not texts. A loss per token can be compared only
    on equal tokens."""

    def other_than(self, asked: "Question") -> str:
        """Return the first difference from the question `asked`, as a clause; empty if they are the same."""
        if self.label != asked.label:
            return f"its label is {self.label}, that of this comparison is {asked.label}"
        if facts_of(self.objective).trained_as != facts_of(asked.objective).trained_as:
            return f"its objective is {self.objective}, that of this comparison is {asked.objective}"
        if self.classes != asked.classes:
            mine, others = (", ".join(one.classes) or "none" for one in (self, asked))
            return f"its classes are {mine}; those of this comparison are {others}"
        if self.tokens != asked.tokens:
            return (
                f"it reads texts as other tokens ({self.tokens or 'none'}) than this comparison "
                f"({asked.tokens or 'none'}), so losses per token mean different things"
            )
        return ""


TRAINED_ELSEWHERE = "trained_elsewhere"
"""Key of `Lineage.configuration`: origin, declared days, and digests of document and ONNX file, of a model that this
platform did not train."""


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """Origin of the weights."""

    model: str
    """Name of the pipeline."""
    fingerprint: str
    """Fingerprint of the training job, 64 hex digits: the name of its folder, its lock and its MLflow run."""
    snapshot_digest: str
    """SHA-256 of the training snapshot."""
    label: str
    """Column of the feature table that the model predicts."""
    windows: Mapping[str, tuple[str, str]]
    """Split (`train`, `validation`, `holdout`) → first and last partition key, both inclusive. Of a model that was
    trained elsewhere the holdout alone."""
    seen: Days
    """Days of the rows behind the weights: training and validation, the same of all versions whose weights it began
    with, and those of the study that chose its values."""
    schema_hash: str
    """SHA-256 of names and types of the feature table's columns."""
    code_version: str
    """Digest of the model function and of the project modules that it imports."""
    weights_sha256: str
    """SHA-256 of the weights file that training wrote."""
    feature_versions: Mapping[str, str] = field(default_factory=dict[str, str])
    """Feature table → digest of the code that made its partitions; several digests are joined by `+`."""
    configuration: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Hyperparameters, training settings that can change the weights, and seed; JSON values."""

    @property
    def weight(self) -> str:
        """Column that weighted the rows of the training; empty if each row counted once."""
        return str(self.configuration.get("weight", ""))

    @property
    def elsewhere(self) -> Mapping[str, Any]:
        """Declarations about a model that was trained elsewhere, with its digests; empty for a training."""
        return self.configuration.get(TRAINED_ELSEWHERE, {})


@dataclass(frozen=True, kw_only=True)
class BlobDecoder:
    """Decoder of a column's blobs that works without this project installed."""

    column: str
    function: str
    """Name in `source`: `(content: bytes) -> array`."""
    source: str
    """Text of a self-contained module."""
    packages: tuple[str, ...] = ()
    """Top-level names of imported packages outside the standard library."""


def tokens_of(objective: str, decode: BlobDecoder | None, vocabulary: int) -> str:
    """Return an identity of the tokens that a text is read as; empty if rows are not texts."""
    if decode is None or not facts_of(objective).has_tokens:
        return ""
    return f"{vocabulary} ids, {decode.function} {version_of(decode.source)}"


@dataclass(frozen=True, kw_only=True)
class BundleFacts:
    """The content of `bundle.json`."""

    objective: str
    """Name of the pipeline's objective."""
    inputs: tuple[InputColumn, ...]
    """Raw columns, in the order of the graph's inputs."""
    output: str
    """Name of the graph's output, float32: a probability or a value `[rows]`, or `[rows, columns]`."""
    null_category: str
    """Text that a caller of the bare graph sends for a null category."""
    fitted: FittedState
    lineage: Lineage
    metrics: Mapping[str, float]
    """Name → value at the time the bundle was made."""
    blob: BlobInput | None = None
    """Description of the column with blobs; None if the model reads none."""
    tokens: str = ""
    """Identity of the tokens that a text is read as: number of ids, and digest of `decode`; empty if rows are not
    texts."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the numbers of a prediction; empty if it is one number."""
        return tuple(self.fitted.classes) or facts_of(self.objective).columns

    @property
    def schema_digest(self) -> str:
        """SHA-256 of input columns and question. A change makes a new major version."""
        columns = [(column.name, column.kind, column.dtype) for column in self.inputs]
        return _digest({"inputs": columns, "question": asdict(self.question)})

    @property
    def question(self) -> Question:
        return Question(
            label=self.lineage.label,
            objective=self.objective,
            classes=tuple(self.fitted.classes),
            tokens=self.tokens,
        )

    @property
    def recipe_digest(self) -> str:
        """SHA-256 of code and configuration, without the data. A change makes a new minor version."""
        lineage = self.lineage
        return _digest(
            {
                "code": lineage.code_version,
                "features": dict(lineage.feature_versions),
                "configuration": dict(lineage.configuration),
            }
        )

    def to_json(self) -> str:
        """Return the content of `bundle.json`; equal facts give equal text."""
        return json.dumps(
            {
                "format": FORMAT,
                "objective": self.objective,
                "inputs": [asdict(column) for column in self.inputs],
                "output": {
                    "name": self.output,
                    "dtype": "float32",
                    "shape": ["rows", len(self.columns)] if self.columns else ["rows"],
                    "columns": self.columns,
                    "classes": self.fitted.classes,
                    "link": facts_of(self.objective).link,
                },
                "null_category": self.null_category,
                "fitted": asdict(self.fitted),
                "fitted_digest": self.fitted.digest,
                "lineage": asdict(self.lineage),
                "metrics": dict(self.metrics),
                **({} if self.blob is None else {"blob": asdict(self.blob)}),
                **({"tokens": self.tokens} if self.tokens else {}),
            },
            sort_keys=True,
            indent=1,
        )

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the facts of the bundle in `folder`. Raises `BundleRefused` for a folder of another format."""
        facts = read_facts(folder)
        lineage: dict[str, Any] = facts["lineage"]
        seen = Days.from_document(lineage.pop("seen"))
        windows = {split: (first, last) for split, (first, last) in lineage.pop("windows").items()}
        return cls(
            objective=facts["objective"],
            inputs=tuple(InputColumn(**column) for column in facts["inputs"]),
            output=facts["output"]["name"],
            null_category=facts["null_category"],
            fitted=FittedState.from_document(facts["fitted"]),
            lineage=Lineage(**lineage, windows=windows, seen=seen),
            metrics=facts["metrics"],
            blob=BlobInput.from_facts(facts["blob"]) if "blob" in facts else None,
            tokens=facts.get("tokens", ""),
        )


def _digest(facts: Mapping[str, Any]) -> str:
    canonical = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def client_breaks(before: BundleFacts, after: BundleFacts) -> Iterator[str]:
    """Yield what breaks for clients of `before` if `after` answers them, a clause each.

    A client breaks if `after` needs a column that it does not send, reads a column as another kind, or answers another
    question. Other types of the same kind and categories that training never saw are no difference, because every
    version accepts them.
    """
    sent = {column.name: column for column in before.inputs}
    for column in after.inputs:
        known = sent.get(column.name)
        if known is None:
            yield f"it needs the column {column.name!r} ({column.kind}, {column.dtype}), which clients do not send"
        elif known.kind != column.kind:
            yield (
                f"it reads the column {column.name!r} as {column.kind} ({column.dtype}), and clients send "
                f"{known.kind} ({known.dtype})"
            )
    asked, answered = before.question, after.question
    if asked.label != answered.label:
        yield f"it predicts {answered.label!r}, and clients expect {asked.label!r}"
    if asked.objective != answered.objective:
        yield f"its objective is {answered.objective!r}, and clients expect {asked.objective!r}"
    if before.columns != after.columns:
        yield f"its answer has {_named(after)}, and clients expect {_named(before)}"
    if asked.tokens != answered.tokens:
        yield "it reads texts as other tokens, so its figures mean something else"


def _named(facts: BundleFacts) -> str:
    return ", ".join(facts.columns) or "one number"


_MARKER = LISTING
"""File that is uploaded last: its presence marks a bundle as complete."""
MLFLOW_FILES = (
    "MLmodel", "conda.yaml", "python_env.yaml", "requirements.txt", "input_example.json", "serving_input_example.json",
    "pyfunc.py", "runtime.py", "categories.py",
)  # fmt: skip
"""Files by which MLflow serves a bundle."""
FILES = (GRAPH, WEIGHTS, FACTS, GOLDEN, *MLFLOW_FILES, LISTING)
"""Files of a bundle; if rows have blobs, also `decode.py`. When MLflow loads a version, it adds a
`registered_model_meta`, which is not part of the bundle."""

BUNDLES = "bundles"
"""Name of the folder of all bundles among the artifacts."""


class BundleMissing(Exception):
    """The store has no bundle of this digest."""


class BundleDamaged(Exception):
    """A file of a stored bundle is gone or does not match the bundle's digest."""


@dataclass(frozen=True)
class Bundle:
    """One stored bundle."""

    digest: str
    """SHA-256 of its `files.sha256`, which has the SHA-256 of each other file: 64 hex digits."""
    folder: Path
    """Local folder to read from."""
    address: str
    """Address for MLflow and other machines: `file:///…` or `s3://…`."""

    @cached_property
    def facts(self) -> BundleFacts:
        """Content of `bundle.json`."""
        return BundleFacts.read(self.folder)

    @property
    def bytes(self) -> int:
        """Bytes of all files that the digest covers."""
        return sum((self.folder / name).stat().st_size for name in _files_of(self.folder))


class BundleStore:
    """All bundles. Safe for several processes: a killed process leaves no half-visible bundle.

    If bundles are on a server, every method may raise `ArtifactsError`.
    """

    def __init__(self, artifacts: Artifacts) -> None:
        self.artifacts = artifacts
        """Storage that holds the bundles, and the dossiers beside them."""

    @property
    def root(self) -> Path:
        """Local folder of bundles."""
        return self.artifacts.folder(BUNDLES)

    @property
    def address(self) -> str:
        """Address of the store for other machines. A bundle's address is this address, `/` and its digest."""
        return self.artifacts.address(BUNDLES)

    @contextmanager
    def incoming(self) -> Generator[Path]:
        """Yield an empty folder beside the bundles, to fill and pass to `add`; delete it after the block."""
        with unfinished_folder(self.root) as folder:
            yield folder

    def add(self, folder: Path) -> Bundle:
        """Move a folder from `incoming` into the store; an existing bundle stays unchanged.

        The bundle is always pushed: the process that added it first may have been killed before its push.
        """
        digest = digest_of(folder)
        place = self.root / digest
        for path in folder.iterdir():
            path.chmod(0o444)
        folder.chmod(0o755)
        try:
            folder.rename(place)
        except OSError:
            if not place.is_dir():
                raise
            if not _has(place, digest):  # that copy is incomplete or damaged, this one is complete
                for name in _files_of(folder):
                    (folder / name).replace(place / name)
        bundle = self.open(digest)
        self.artifacts.push(f"{BUNDLES}/{digest}", _files_of(place), last=_MARKER)
        return bundle

    def open(self, digest: str) -> Bundle:
        """Return the bundle of this digest after verifying its files. Raises `BundleMissing`, `BundleDamaged`."""
        name = f"{BUNDLES}/{digest}"
        folder = self.root / digest
        if not _has(folder, digest):
            try:
                # Repair an incomplete local copy from the server. Without a server, this raises `ArtifactMissing`.
                reads = self.artifacts.exists(name, DECODE)
                self.artifacts.pull(name, (*FILES, DECODE) if reads else FILES, last=_MARKER)
            except ArtifactMissing as missing:
                if not folder.is_dir():
                    raise BundleMissing(
                        f"no bundle {digest[:12]} under {self.address}: materialize the "
                        "model again, or copy the bundle from where it was made"
                    ) from missing
            found = digest_of(folder)
            if found != digest:
                raise BundleDamaged(
                    f"{folder} holds another bundle, {found[:12]}: move the folder away and materialize the "
                    "model again, which writes the same bundle"
                )
        return Bundle(digest, folder, self.artifacts.address(name))


def digest_in(source: str, bundles: str) -> str | None:
    """Return the digest of the bundle at `source`, an address directly below `bundles`; None for other addresses.

    `bundles` is the store's address. A folder of the same name elsewhere is not the bundle: anybody may write to it.
    """
    folder, _, name = source.rstrip("/").rpartition("/")
    is_ours = folder == bundles.rstrip("/") and re.fullmatch("[0-9a-f]{64}", name)
    return name if is_ours else None


def _files_of(folder: Path) -> tuple[str, ...]:
    return (*FILES, DECODE) if (folder / DECODE).is_file() else FILES


def _has(folder: Path, digest: str) -> bool:
    try:
        return digest_of(folder) == digest
    except BundleDamaged:
        return False


def seal(folder: Path) -> None:
    """Write the listing of a finished bundle. From then on, a change of any file is refused."""
    names = [name for name in _files_of(folder) if name != LISTING]
    (folder / LISTING).write_text(listing_of(folder, names))


def digest_of(folder: Path) -> str:
    """Return the digest of a bundle, the SHA-256 of its listing. `BundleDamaged` if a file is missing or differs."""
    if gone := [name for name in FILES if not (folder / name).is_file()]:
        raise BundleDamaged(
            f"{folder} lacks {', '.join(gone)}: move the folder away and materialize the model again"
        )
    try:
        return require_unaltered(folder)
    except BundleAltered as altered:
        raise BundleDamaged(
            f"{altered}, or move the folder away and materialize the model again, which writes the same bundle"
        ) from altered
