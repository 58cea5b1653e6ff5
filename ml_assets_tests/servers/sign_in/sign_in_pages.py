"""Dagster's pages as the chart shows them to persons: an OIDC issuer, oauth2-proxy with the chart's own options, the
proxy of the roles and a webserver, each a process of this machine.

The issuer is the server of Zitadel's library for OpenID Connect, with a form for name and password.
"""

import json
import os
import re
import secrets
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import yaml

from deployment.render import EVERYTHING
from deployment.testbed.build import build
from deployment.testbed.processes import free_port, start, stop, wait_ready, why_http_not
from ml_assets.foundation.checkout import ROOT
from ml_assets_tests.proxy.conftest import serving_dagster
from resources.ledger import Ledger, Person

PROGRAM = Path(sys.executable).with_name("ml-assets")
READY_SECONDS = 180.0
CLIENT, CLIENT_SECRET = "web", "secret"
"""Client that the issuer knows."""
PASSWORD = "correct horse"
SUBJECTS = {"eve": "1001", "bob": "1002", "ada": "1003", "kim": "1004"}
"""Persons that the issuer knows."""
_FORM_ID = re.compile(r'name="id" value="([^"]+)"')


@dataclass(frozen=True)
class SignInPages:
    """Running pages: addresses, the ledger, and the folder of the platform."""

    address: str
    """Address of oauth2-proxy, where browsers ask."""
    issuer: str
    ledger: Ledger
    root: Person
    home: Path

    def browser(self, headers: dict[str, str] | None = None) -> httpx.Client:
        """Return a browser that nobody signed in with."""
        asked = {"accept": "text/html", "origin": self.address} | (headers or {})
        return httpx.Client(base_url=self.address, headers=asked, follow_redirects=True, timeout=60)

    @contextmanager
    def signed_in(self, name: str) -> Iterator[httpx.Client]:
        """Yield a browser in which a person signed in at the issuer, on the way to a page of Dagster."""
        with self.browser() as browser:
            page = self.sign_in(browser, name)
            assert page.url == f"{self.address}/runs", f"{page.url}: {page.text[:2000]}"
            yield browser

    def sign_in(self, browser: httpx.Client, name: str, password: str = PASSWORD) -> httpx.Response:
        """Ask for a page of Dagster, fill in the issuer's form, and return the page behind it."""
        form = browser.get("/runs")
        assert str(form.url).startswith(f"{self.issuer}login/username"), form.url
        [form_id] = _FORM_ID.findall(form.text)
        return browser.post(
            f"{self.issuer}login/username", data={"id": form_id, "username": name, "password": password}
        )


def chart_options() -> dict[str, str]:
    """Return the options of oauth2-proxy in the chart."""
    rendered = yaml.safe_load_all((ROOT / EVERYTHING).read_text())
    [deployment] = (
        one for one in rendered if one and (one["kind"], one["metadata"]["name"]) == ("Deployment", "proxy")
    )
    containers = deployment["spec"]["template"]["spec"]["containers"]
    [arguments] = (one["args"] for one in containers if one["name"] == "oauth2-proxy")
    return dict(one.split("=", 1) for one in arguments)


class signing_in:
    """All parts as processes; yields the pages. `changes`: options of oauth2-proxy in place of the chart's."""

    def __init__(self, home: Path, changes: dict[str, str] | None = None, scope: str = "") -> None:
        self._home, self._changes, self._scope = home, changes or {}, scope
        self._ports = {part: free_port() for part in ("issuer", "proxy", "oauth2-proxy")}
        self._parts = ExitStack()

    def __enter__(self) -> SignInPages:
        with ExitStack() as parts:
            ledger = Ledger(f"sqlite:///{self._home}/ledger.db")
            token = ledger.accounts.add_by_token("root", Person.unchecked("root"), is_administrator=True)
            root = Person.proved(ledger.accounts.of_token(token), "token")
            issuer = f"http://localhost:{self._ports['issuer']}/"
            address = f"http://127.0.0.1:{self._ports['oauth2-proxy']}"
            self._start_issuer(parts, f"{address}/oauth2/callback", issuer)
            webserver = parts.enter_context(serving_dagster(self._home))
            self._start_proxy(parts, webserver, address)
            self._start_oauth2_proxy(parts, issuer, address)
            self._parts = parts.pop_all()
        return SignInPages(address, issuer, ledger, root, self._home)

    def __exit__(self, *_: object) -> None:
        self._parts.close()

    def _start_issuer(self, parts: ExitStack, redirect: str, issuer: str) -> None:
        users = {
            subject: {
                "ID": subject,
                "Username": name,
                "Password": PASSWORD,
                "Email": f"{name}@example.com",
                "EmailVerified": True,
            }
            for name, subject in SUBJECTS.items()
        }
        (self._home / "users.json").write_text(json.dumps(users))
        given = {
            "PORT": str(self._ports["issuer"]),
            "USERS_FILE": str(self._home / "users.json"),
            "REDIRECT_URI": redirect,
        }
        ready = f"{issuer}.well-known/openid-configuration"
        self._start(parts, "issuer", [str(build("oidc-issuer") / "server")], given, ready)

    def _start_proxy(self, parts: ExitStack, webserver: str, address: str) -> None:
        port = str(self._ports["proxy"])
        command = [str(PROGRAM), "proxy", "--webserver", webserver, "--port", port]
        given = os.environ | {"ML_ASSETS_HOME": str(self._home), "ML_ASSETS_UI_URL": address}
        self._start(parts, "proxy", command, given, f"http://127.0.0.1:{port}/-/health")

    def _start_oauth2_proxy(self, parts: ExitStack, issuer: str, address: str) -> None:
        own = {
            "--http-address": f"127.0.0.1:{self._ports['oauth2-proxy']}",
            "--upstream": f"http://127.0.0.1:{self._ports['proxy']}",
            "--oidc-issuer-url": issuer,
            "--redirect-url": f"{address}/oauth2/callback",
        }
        options = chart_options()
        assert own.keys() <= options.keys()
        # Browsers send secure cookies to loopback without TLS, this client of the tests does not.
        options |= own | {"--cookie-secure": "false"} | self._changes
        secret = {
            "OAUTH2_PROXY_CLIENT_ID": CLIENT,
            "OAUTH2_PROXY_CLIENT_SECRET": CLIENT_SECRET,
            "OAUTH2_PROXY_COOKIE_SECRET": secrets.token_hex(16),
        }
        if self._scope:
            secret["OAUTH2_PROXY_SCOPE"] = self._scope
        command = [str(build("oauth2-proxy") / "oauth2-proxy"), *map("=".join, options.items())]
        self._start(parts, "oauth2-proxy", command, secret, f"{address}/ready")

    def _start(
        self, parts: ExitStack, name: str, command: list[str], given: dict[str, str], ready: str
    ) -> None:
        process = start(name, command, log=self._home / f"{name}.log", env=given)
        parts.callback(stop, process)
        wait_ready(process, lambda: why_http_not(ready), READY_SECONDS)
