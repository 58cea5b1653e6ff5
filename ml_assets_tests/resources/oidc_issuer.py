"""A small issuer of OpenID Connect on loopback: discovery, keys, and ID tokens signed with its key."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

AUDIENCE = "ml-assets"


@dataclass
class OidcIssuer:
    """The issuer. `published` are the keys that it serves; `documents` replace what it answers for a path."""

    address: str = ""
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    documents: dict[str, Any] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def id_token(self, subject: str, *, key: Any = None, algorithm: str = "ES256", **claims: Any) -> str:
        """Return an ID token. A claim that is None is left out."""
        now = int(time.time())
        usual = {"iss": self.address, "sub": subject, "aud": AUDIENCE, "iat": now, "exp": now + 600}
        content = {name: value for name, value in (usual | claims).items() if value is not None}
        return jwt.encode(content, self.key if key is None else key, algorithm, headers={"kid": "first"})

    def document(self, path: str) -> Any:
        """Return what the issuer serves at a path; None if nothing."""
        self.asked.append(path)
        if path in self.documents:
            return self.documents[path]
        if path == "/.well-known/openid-configuration":
            return {"issuer": self.address, "jwks_uri": f"{self.address}/keys"}
        public = jwt.algorithms.ECAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        return {"keys": [{**public, "kid": "first", "use": "sig"}]} if path == "/keys" else None


@contextmanager
def running_issuer() -> Iterator[OidcIssuer]:
    """Serve an issuer on a free port for the block."""
    issuer = OidcIssuer()

    class _Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            found = issuer.document(self.path)
            if isinstance(found, str):  # an address to go to instead
                self.send_response(302)
                self.send_header("Location", found)
                self.end_headers()
                return
            self.send_response(404 if found is None else 200)
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as server:
        issuer.address = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield issuer
        finally:
            server.shutdown()
