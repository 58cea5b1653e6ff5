"""Schemas for kubeconform from pinned modules, strict: no field that they do not have. Of Kubernetes, Kueue and
Prometheus Operator.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import yaml

from deployment.testbed.build import MODULES
from deployment.testbed.cluster.commands import run

Schema = dict[str, Any]

_QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_NUMBER_OR_TEXT = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"


def write_schemas(folder: Path) -> None:
    """Write `<kind>_<group>_<version>.json` for each kind."""
    swagger = _source("kubernetes", "k8s.io/kubernetes") / "api" / "openapi-spec" / "swagger.json"
    definitions: Schema = json.loads(swagger.read_text())["definitions"]
    for name in (_QUANTITY, _NUMBER_OR_TEXT):
        definitions[name] = {"type": ["string", "number"]}
    whole = folder / "definitions.json"
    whole.write_text(json.dumps({"definitions": {name: _strict(one) for name, one in definitions.items()}}))
    for name, one in definitions.items():
        for kind in one.get("x-kubernetes-group-version-kind", ()):
            _write(
                folder, kind["kind"], kind["group"], kind["version"], {"$ref": f"{whole}#/definitions/{name}"}
            )
    operator = _source("prometheus-operator", "github.com/prometheus-operator/prometheus-operator")
    of_operator = operator / "example" / "prometheus-operator-crd"
    of_kueue = _source("kueue", "sigs.k8s.io/kueue") / "config" / "components" / "crd" / "bases"
    # Not all of the operator's: PyYAML takes a value = in others for a tag.
    kinds = ("podmonitors", "prometheusrules")
    for path in (
        *of_kueue.glob("*.yaml"),
        *(of_operator / f"monitoring.coreos.com_{one}.yaml" for one in kinds),
    ):
        spec = yaml.safe_load(path.read_text())["spec"]
        for version in spec["versions"]:
            schema = _strict(version["schema"]["openAPIV3Schema"])
            _write(folder, spec["names"]["kind"], spec["group"], version["name"], schema)


def _source(module: str, path: str) -> Path:
    """Return the folder with the source of a pinned module, downloaded once."""
    told = run(
        [shutil.which("go") or "go", "-C", MODULES / module, "mod", "download", "-json", path], seconds=300
    )
    return Path(json.loads(told)["Dir"])


def _write(folder: Path, kind: str, group: str, version: str, schema: Schema) -> None:
    # kubeconform takes the version for the group where an object has none.
    (folder / f"{kind.lower()}_{group or version}_{version}.json").write_text(json.dumps(schema))


def _strict(value: Any) -> Any:
    """Return a schema in which an object has no other fields than its `properties`."""
    match value:
        case {"properties": dict(), **other} if "additionalProperties" not in other and not other.get(
            "x-kubernetes-preserve-unknown-fields"
        ):
            return {name: _strict(inner) for name, inner in value.items()} | {"additionalProperties": False}
        case dict():
            return {name: _strict(inner) for name, inner in value.items()}
        case list():
            return [_strict(one) for one in value]
        case _:
            return value
