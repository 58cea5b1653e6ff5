"""Provenance of a bundle: an in-toto statement with the predicate of SLSA 1.0.

It names what went into the weights (commit of the lake, tables, snapshot, code, locked packages), who built them, and
the evaluation. Not here: its signature (`envelope`).
"""

import hashlib
from typing import Any

from ml_assets.extras.governance.dossier.contents import BUNDLE, DossierFacts

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:ml-assets:training:v1"
"""Kind of build: a training of this platform, evaluated and bundled."""


def provenance(facts: DossierFacts) -> dict[str, Any]:
    """Return the statement about a bundle. Its subjects are the bundle, by its digest, and each file of it."""
    lineage, evaluation = facts.lineage, facts.evaluation
    trained_on = evaluation["trained_on"]
    nothing: dict[str, Any] = {}
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
                "buildType": BUILD_TYPE,
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
                    *_code(facts),
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
