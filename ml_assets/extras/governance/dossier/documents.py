"""Documents of a dossier: its facts, gathered once, and the provenance and the bill of materials that are made of them.

Provenance is an in-toto statement with the predicate of SLSA 1.0: what went into the weights (commit of the lake,
tables, snapshot, code, locked packages), who built them, and the evaluation. The bill is CycloneDX 1.6: the model, its
card, its data and its locked packages. Not here: their signature (`signature`).
"""

import hashlib
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ml_assets.model.release.bundle_store import TRAINED_ELSEWHERE

BUNDLE, DOSSIER = "bundle", "dossier"
"""Folders of an exported dossier: files of the bundle, and the documents about it."""
PROVENANCE = f"{DOSSIER}/provenance.intoto.json"
BILL = f"{DOSSIER}/bom.cdx.json"
CARD, CARD_PAGE = f"{DOSSIER}/card.md", f"{DOSSIER}/card.html"
EVALUATION = f"{DOSSIER}/evaluation.json"
DECISIONS = f"{DOSSIER}/decisions.json"
LOCK = f"{DOSSIER}/requirements.txt"
CODE_DIFFERENCE = f"{DOSSIER}/code.diff"
LISTING = f"{BUNDLE}/files.sha256"
"""Its SHA-256 is the bundle's digest."""
FACTS = f"{BUNDLE}/bundle.json"


@dataclass(frozen=True, kw_only=True)
class TableBehind:
    """A table whose rows are behind the weights."""

    name: str
    partitions: int
    digest: str
    """SHA-256 over the sorted lines `<key> <content digest>` of these partitions."""


@dataclass(frozen=True, kw_only=True)
class DossierFacts:
    """A registered version, its origin, and the decisions about it."""

    model: str
    number: int
    semantic: str
    partition: str
    description: str
    objective: str
    label: str
    inputs: tuple[str, ...]
    """Names of the raw columns."""
    metrics: Mapping[str, float]
    """Metrics of the holdout."""
    intended_use: str
    not_intended_for: tuple[str, ...]
    bundle: str
    """Digest of the bundle."""
    listing: str
    """Content of its `files.sha256`."""
    lineage: Mapping[str, Any]
    """`lineage` of its `bundle.json`."""
    evaluation: Mapping[str, Any]
    """Row of its evaluation in the ledger."""
    lake: str
    """Name of the lake's repository."""
    tables: tuple[TableBehind, ...]
    launches: tuple[Mapping[str, Any], ...]
    """Launches that trained it, oldest first: code, lock, packages, machine."""
    decisions: Mapping[str, Any]
    """`head` of the ledger's chain, and `rows`: its decisions about this bundle, as they are stored."""
    lock: str = ""
    """Locked requirements of the last launch."""
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """Further documents by their path in the dossier."""


STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:ml-assets:training:v1"
"""Kind of build: a training of this platform, evaluated and bundled."""
SENT_DOCUMENT, SENT_GRAPH = "registered document", "registered ONNX file"
"""Dependencies of a model that was trained elsewhere, in place of `code`."""
FOREIGN_TYPE = "urn:ml-assets:trained-elsewhere:v1"
"""Kind of build: a model that somebody else trained and sent as an ONNX file; evaluated and bundled here."""


def provenance(facts: DossierFacts) -> dict[str, Any]:
    """Return the statement about a bundle. Its subjects are the bundle, by its digest, and each file of it."""
    lineage, evaluation = facts.lineage, facts.evaluation
    trained_on = evaluation["trained_on"]
    nothing: dict[str, Any] = {}
    elsewhere = lineage["configuration"].get(TRAINED_ELSEWHERE, {})
    first, last = (facts.launches[at] if facts.launches else nothing for at in (0, -1))
    return {
        "_type": STATEMENT,
        "subject": [
            {"name": f"{facts.model}/{facts.number}", "digest": {"sha256": facts.bundle}},
            *(
                {"name": f"{BUNDLE}/{name}", "digest": {"sha256": sha}}
                for name, sha in listed(facts.listing).items()
            ),
        ],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": FOREIGN_TYPE if elsewhere else BUILD_TYPE,
                "externalParameters": {
                    "model": facts.model,
                    "partition": facts.partition,
                    "configuration": dict(lineage["configuration"]),
                },
                "internalParameters": {
                    "fingerprint": lineage["fingerprint"],
                    "window": {name: trained_on[name] for name in ("table", "first", "last", "partitions")},
                    "begins_with": trained_on["begins_with"],
                },
                "resolvedDependencies": [
                    {
                        "name": "lake",
                        "uri": f"urn:ml-assets:lake:{facts.lake}:{trained_on['commit']}",
                        "annotations": {"commit": trained_on["commit"]},
                    },
                    {"name": "snapshot", "digest": {"sha256": lineage["snapshot_digest"]}},
                    *(
                        {
                            "name": f"table {table.name}",
                            "digest": {"sha256": table.digest},
                            "annotations": {"partitions": table.partitions},
                        }
                        for table in facts.tables
                    ),
                    *(_sent(facts, elsewhere) if elsewhere else _code(facts)),
                    *(
                        [
                            {
                                "name": "requirements.txt",
                                "digest": {"sha256": hashlib.sha256(facts.lock.encode()).hexdigest()},
                            }
                        ]
                        if facts.lock
                        else []
                    ),
                ],
            },
            "runDetails": {
                "builder": {
                    "id": "urn:ml-assets:launcher",
                    "version": {
                        name: last["packages"][name]
                        for name in ("torch", "dagster")
                        if name in last.get("packages", {})
                    }
                    | ({"python": last["python"]} if last else {}),
                },
                "metadata": {
                    "invocationId": evaluation["run_id"],
                    **({"startedOn": _moment(first["at"])} if first else {}),
                    "finishedOn": _moment(evaluation["at"]),
                },
                "byproducts": [
                    {"name": "weights", "digest": {"sha256": lineage["weights_sha256"]}},
                    {"name": "evaluation", "digest": {"sha256": evaluation["evaluation_digest"]}},
                    *(
                        {"name": f"launch {one['at']}", "annotations": _of_launch(one)}
                        for one in facts.launches
                    ),
                ],
            },
        },
    }


def listed(listing: str) -> dict[str, str]:
    """Return name → SHA-256 of the files in a listing of `sha256sum`."""
    return {line[66:]: line[:64] for line in listing.splitlines()}


def _sent(facts: DossierFacts, elsewhere: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return document and ONNX file of a model that was trained elsewhere, with who sent them and what is declared.

    No code: the platform does not know it.
    """
    sender = facts.evaluation["by"]
    said = {
        "trained": "elsewhere",
        "origin": elsewhere["origin"],
        "declared_days": dict(elsewhere["declared_days"]),
        "sent_by": sender["name"],
        "checked_by": sender["checked_by"],
    }
    return [
        {"name": SENT_DOCUMENT, "digest": {"sha256": elsewhere["document"]}, "annotations": said},
        {"name": SENT_GRAPH, "digest": {"sha256": elsewhere["onnx"]}},
    ]


def _code(facts: DossierFacts) -> list[dict[str, Any]]:
    """Return the code of each launch: git commit, and the digest of what differed from it."""
    versions = {"version": facts.lineage["code_version"]}
    found = [
        {
            "name": "code",
            "uri": "urn:ml-assets:code",
            "digest": {"gitCommit": one["commit"]}
            | ({"sha256": one["difference"]} if one["difference"] else {}),
            "annotations": versions | {"dirty": one["is_dirty"]},
        }
        for one in facts.launches
        if one["commit"]
    ]
    unique = list({str(one): one for one in found}.values())
    return unique or [{"name": "code", "uri": "urn:ml-assets:code", "annotations": versions}]


def _of_launch(launch: Any) -> dict[str, Any]:
    return {name: launch[name] for name in ("run_id", "author", "checked_by", "machine", "workers", "python")}


def _moment(iso: str) -> str:
    """Return an ISO 8601 time as protobuf's JSON has it: with `Z` for UTC."""
    return f"{iso.replace('Z', '').partition('+')[0]}Z"


SPECIFICATION = "1.6"
_PACKAGE = re.compile(r"^([A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?==([^\s;\\]+)", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def bill_of_materials(facts: DossierFacts) -> dict[str, Any]:
    """Return the bill. Equal facts give an equal bill."""
    model = f"model/{facts.model}/{facts.number}"
    data = [
        {
            "bom-ref": f"data/{table.name}",
            "type": "data",
            "name": table.name,
            "version": facts.evaluation["trained_on"]["commit"],
            "description": f"{table.partitions} partitions behind the weights",
            "hashes": [{"alg": "SHA-256", "content": table.digest}],
            "data": [{"type": "dataset", "name": table.name}],
        }
        for table in facts.tables
    ]
    packages = list(_packages(facts))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": SPECIFICATION,
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, facts.bundle + str(facts.decisions['head']))}",
        "version": 1,
        "metadata": {
            "timestamp": _moment(facts.evaluation["at"]),
            "component": {
                "bom-ref": model,
                "type": "machine-learning-model",
                "name": facts.model,
                "version": facts.semantic,
                "description": facts.description or f"Model {facts.model}",
                "hashes": [{"alg": "SHA-256", "content": facts.bundle}],
                "modelCard": _model_card(facts),
                "components": [
                    {
                        "type": "file",
                        "name": name,
                        "hashes": [{"alg": "SHA-256", "content": sha}],
                    }
                    for name, sha in listed(facts.listing).items()
                ],
                "properties": [
                    {"name": "ml-assets:number", "value": str(facts.number)},
                    {"name": "ml-assets:fingerprint", "value": facts.lineage["fingerprint"]},
                    {"name": "ml-assets:snapshot", "value": facts.lineage["snapshot_digest"]},
                    {"name": "ml-assets:lock", "value": hashlib.sha256(facts.lock.encode()).hexdigest()},
                ],
            },
        },
        "components": [*data, *packages],
        "dependencies": [
            {"ref": model, "dependsOn": [one["bom-ref"] for one in (*data, *packages)]},
        ],
    }


def _model_card(facts: DossierFacts) -> dict[str, Any]:
    considerations: dict[str, Any] = {}
    if facts.intended_use:
        considerations["useCases"] = [facts.intended_use]
    if facts.not_intended_for:
        considerations["technicalLimitations"] = [
            f"Not intended for: {one}" for one in facts.not_intended_for
        ]
    return {
        "modelParameters": {
            "approach": {"type": "supervised"},
            "task": facts.objective,
            "datasets": [{"ref": f"data/{table.name}"} for table in facts.tables],
            "inputs": [{"format": name} for name in facts.inputs],
            "outputs": [{"format": f"{facts.objective} of {facts.label}"}],
        },
        "quantitativeAnalysis": {
            "performanceMetrics": [
                {"type": name, "value": repr(value), "slice": "holdout"}
                for name, value in sorted(facts.metrics.items())
            ],
        },
        **({"considerations": considerations} if considerations else {}),
    }


def _packages(facts: DossierFacts) -> Iterator[dict[str, Any]]:
    """Yield each locked package with its hashes; without a lock, each that the last launch had installed."""
    found: dict[tuple[str, str], list[str]] = {}
    starts = list(_PACKAGE.finditer(facts.lock))
    ends = [*(one.start() for one in starts[1:]), len(facts.lock)]
    for match, end in zip(starts, ends, strict=False):  # without packages, there is only the end
        hashes = _HASH.findall(facts.lock[match.end() : end])
        found.setdefault((match[1], match[2]), []).extend(hashes)
    if not found and facts.launches:
        found = {(name, version): [] for name, version in sorted(facts.launches[-1]["packages"].items())}
    for (name, version), hashes in found.items():
        address = f"pkg:pypi/{re.sub('[-_.]+', '-', name).lower()}@{version.replace('+', '%2B')}"
        yield {
            "bom-ref": address,
            "type": "library",
            "name": name,
            "version": version,
            "purl": address,
            **(
                {"hashes": [{"alg": "SHA-256", "content": one} for one in dict.fromkeys(hashes)]}
                if hashes
                else {}
            ),
        }
