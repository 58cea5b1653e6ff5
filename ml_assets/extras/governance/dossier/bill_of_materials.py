"""Bill of materials of a bundle: CycloneDX 1.6 with the model, its card, its data and its locked packages."""

import hashlib
import re
import uuid
from collections.abc import Iterator
from typing import Any

from ml_assets.extras.governance.dossier.contents import DossierFacts
from ml_assets.extras.governance.dossier.provenance import listed

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
            "timestamp": facts.evaluation["at"].partition("+")[0].replace("Z", "") + "Z",
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
