"""Keys, certificates and kubeconfigs of a cluster: one authority, and one client certificate per component.

Here: files below `<state>/pki` and the kubeconfigs. They are valid for a year and serve a cluster on one machine: their
private keys are in that folder, readable only by their owner.
"""

import base64
import json
import os
from dataclasses import dataclass
from pathlib import Path

from deployment.testbed.cluster.cluster_layout import API_SERVICE, DOMAIN, ClusterLayout
from deployment.testbed.cluster.commands import run

DAYS = "365"
CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc")
COMPONENTS = ("kube-controller-manager", "kube-scheduler", "kube-proxy")


@dataclass(frozen=True)
class Pki:
    """Paths of the files, which `make` creates."""

    folder: Path

    @property
    def ca(self) -> Path:
        return self.folder / "ca.crt"

    def certificate(self, name: str) -> Path:
        return self.folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def kubeconfig(self, name: str) -> Path:
        return self.folder / f"{name}.kubeconfig"


def make(layout: ClusterLayout) -> Pki:
    """Create the missing files, in about 20 ms each. The administrator's kubeconfig is `layout.kubeconfig`."""
    layout.pki.mkdir(parents=True, exist_ok=True, mode=0o700)
    pki = Pki(layout.pki)
    if not pki.ca.exists():
        # The key signing service-account tokens is RSA: the token format's default.
        run(["openssl", "genrsa", "-out", pki.key("service-account"), "2048"])
        run(["openssl", "rsa", "-in", pki.key("service-account"), "-pubout",
             "-out", pki.folder / "service-account.pub"])  # fmt: skip
        run(["openssl", "req", "-x509", *CURVE, "-keyout", pki.key("ca"), "-out", pki.ca,
             "-days", DAYS, "-subj", f"/CN={layout.context}"])  # fmt: skip
    names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", f"kubernetes.default.svc.{DOMAIN}")
    _sign(pki, "apiserver", "/CN=kube-apiserver", [*(f"DNS:{name}" for name in names),
          f"IP:{API_SERVICE}", f"IP:{layout.address}"])  # fmt: skip
    _sign(pki, "admin", "/O=system:masters/CN=admin")
    _write_kubeconfig(layout, pki, "admin", layout.kubeconfig)
    for component in COMPONENTS:
        _sign(pki, component, f"/CN=system:{component}")
        _write_kubeconfig(layout, pki, component, pki.kubeconfig(component))
    for node in map(layout.node, layout.numbers):
        _sign(pki, node.name, f"/O=system:nodes/CN=system:node:{node.name}")
        _write_kubeconfig(layout, pki, node.name, pki.kubeconfig(node.name))
        # Unless the certificate contains the address, the API server refuses to fetch logs from this kubelet.
        _sign(pki, f"serving-{node.name}", f"/CN={node.name}", [f"DNS:{node.name}", f"IP:{node.address}"])
    return pki


def _sign(pki: Pki, name: str, subject: str, alternatives: list[str] | None = None) -> None:
    certificate = pki.certificate(name)
    if certificate.exists():
        return
    request = run(["openssl", "req", *CURVE, "-keyout", pki.key(name), "-subj", subject])
    extensions = pki.folder / f"{name}.ext"
    extensions.write_text(f"subjectAltName={','.join(alternatives or [f'DNS:{name}'])}\n")
    signed = run(["openssl", "x509", "-req", "-CA", pki.ca, "-CAkey", pki.key("ca"), "-CAcreateserial",
                  "-days", DAYS, "-extfile", extensions], stdin=request)  # fmt: skip
    certificate.write_text(signed)


def _write_kubeconfig(layout: ClusterLayout, pki: Pki, user: str, path: Path) -> None:
    """Write a kubeconfig with all certificates inline, so that the single file can be copied. JSON is valid YAML."""

    def inline(file: Path) -> str:
        return base64.b64encode(file.read_bytes()).decode()

    if path.exists():
        return
    name = layout.context
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": name, "cluster": {"server": layout.api, "certificate-authority-data": inline(pki.ca)}}
        ],
        "users": [
            {
                "name": user,
                "user": {
                    "client-certificate-data": inline(pki.certificate(user)),
                    "client-key-data": inline(pki.key(user)),
                },
            }
        ],
        "contexts": [{"name": name, "context": {"cluster": name, "user": user}}],
        "current-context": name,
    }
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(config, file, indent=1)
