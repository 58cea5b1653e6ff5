"""Way to Dagster's webserver for a person: the check of each mutation, and the record of who launched what.

The proxy of the pages and the API send their mutations this way, so both have the same rules, and the ledger knows
whoever launched a run. Not here: who asks (`persons`), the tables of the rules (`rules`).
"""

import json
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import urllib3

from ml_assets.extras.governance.proxy.documents import AskedDocument, AskedMutation, take_launched
from ml_assets.extras.governance.proxy.persons import PageVisitor
from ml_assets.extras.governance.proxy.rules import MUTATIONS, is_reserved, may
from ml_assets.extras.governance.proxy.targets import require_groups
from ml_assets.extras.governance.sessions import PageRefused
from resources.ledger import Ledger, LedgerError

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 300.0
"""Longest silence of the webserver. It loads a code location meanwhile."""
LAUNCH_SECONDS = 20.0
"""Longest wait for launches at the end. Kubernetes kills a pod after 30 s."""
_STOP = """mutation($id: String!) {
  terminateRun(runId: $id, terminatePolicy: SAFE_TERMINATE) { __typename }
  cancelPartitionBackfill(backfillId: $id) { __typename } }"""
"""An id is of a run or of a backfill; of the other kind there is none with it."""


class GuardedWebserver:
    """Dagster's webserver behind the rules of the roles. Safe for threads."""

    def __init__(self, ledger: Ledger, address: str) -> None:
        self.address = address
        self._ledger = ledger
        self._pool = self._connections()
        self._launches = threading.Condition()
        self._launching = 0

    def require_allowed(
        self, asked: AskedMutation, visitor: PageVisitor, *, ours: Collection[str] = ()
    ) -> None:
        """Raise `PageRefused` with the reason if the person may not call a mutation with these arguments.

        `ours` are reserved tags that the platform itself gives the run, not the person.
        """
        rule, standing = MUTATIONS.get(asked.name), visitor.standing
        if rule is None:
            raise PageRefused(
                403, f"the proxy does not know {asked.name}: run the Dagster of the locked requirements"
            )
        if not may(standing.role, rule.role):
            raise PageRefused(
                403,
                f"{asked.name} needs the role {rule.role}, and {role_in_words(visitor)}. An administrator can change "
                f"that: ml-assets accounts role {visitor.person.name} {rule.role} --reason '…'",
            )
        if reserved := sorted(tag for tag in asked.tags() if is_reserved(tag) and tag not in ours):
            raise PageRefused(
                403,
                f"the tag {reserved[0]!a} is reserved: Dagster or the platform decides by it. Leave it out",
            )
        if standing.groups:
            require_groups(asked, rule.touches, standing.groups, self.ask)

    def ask(self, query: str, variables: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the webserver's answer to a question of the platform itself."""
        _, content = self.send_graphql(
            json.dumps({"query": query, "variables": variables}).encode(), is_read=True
        )
        if not content.get("data") or content.get("errors"):
            raise PageRefused(
                502, f"Dagster's webserver did not say which assets this touches: {content}"[:400]
            )
        return content["data"]

    def launch(self, document: AskedDocument, visitor: PageVisitor) -> tuple[int, Any]:
        """Send a checked document that launches; record what it launched under the person.

        Return status and content of the webserver's answer. Raise `PageRefused`.
        """
        with self._launch_in_flight():
            status, content = self.send_graphql(document.as_json(), is_read=False)
            for one in document.mutations:
                launched = take_launched((content.get("data") or {}).get(one.key))
                if launched:
                    self._record(launched, one, visitor)
        return status, content

    @contextmanager
    def _launch_in_flight(self) -> Iterator[None]:
        with self._launches:
            self._launching += 1
        try:
            yield
        finally:
            with self._launches:
                self._launching -= 1
                self._launches.notify_all()

    def wait_for_launches(self) -> None:
        """Wait at the end for launches in flight: a run of which the ledger knows no launcher would stay behind."""
        with self._launches:
            self._launches.wait_for(lambda: not self._launching, LAUNCH_SECONDS)

    def _record(self, launched: list[str], asked: AskedMutation, visitor: PageVisitor) -> None:
        """Record who launched. What the ledger cannot record is stopped again: nobody would know who launched it."""
        try:
            self._ledger.launches.record(launched, visitor.person, asked.name)
        except LedgerError as error:
            for one in launched:
                body = json.dumps({"query": _STOP, "variables": {"id": one}}).encode()
                self.send_graphql(body, is_read=False)
            raise PageRefused(
                503,
                f"{', '.join(launched)} was launched and stopped again, because nobody could record who did: {error}",
            ) from error

    def send_graphql(self, body: bytes, *, is_read: bool) -> tuple[int, Any]:
        """Return status and content of the webserver's answer. Raise `PageRefused`."""
        answer = self.sent("POST", "/graphql", {"content-type": "application/json"}, body, is_read=is_read)
        try:
            return answer.status, json.loads(answer.read(decode_content=False))
        except urllib3.exceptions.HTTPError as error:
            raise _away(error) from error
        except ValueError:
            raise PageRefused(502, f"Dagster's webserver answered {answer.status}, not with JSON") from None

    def sent(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, *, is_read: bool
    ) -> urllib3.BaseHTTPResponse:
        """Return the webserver's answer, whose body is still to be read.

        A webserver closes a connection on which it hears nothing for 5 s, perhaps just when the next request is on its
        way. A read is then sent again. Anything else is sent once, over a connection of its own.
        """
        pool = self._pool if is_read else self._connections()
        for is_last in (False, True) if is_read else (True,):
            try:
                return pool.urlopen(
                    method,
                    target,
                    body,
                    {**headers, "accept-encoding": "identity"},
                    redirect=False,
                    preload_content=False,
                    decode_content=False,
                )
            except urllib3.exceptions.HTTPError as error:
                if is_last or not isinstance(error, urllib3.exceptions.ProtocolError):
                    raise _away(error) from error
        raise AssertionError  # the last try returns or raises

    def _connections(self) -> urllib3.HTTPConnectionPool:
        # No proxy of the environment, and no redirect: the address of the webserver is the only one that is asked.
        timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=ANSWER_SECONDS)
        return urllib3.connection_from_url(self.address, maxsize=32, timeout=timeout, retries=False)


def role_in_words(visitor: PageVisitor) -> str:
    """Return who a person is, for a refusal: `bob is an operator`."""
    role = visitor.standing.role
    return f"{visitor.person.name} is {'a' if role == 'viewer' else 'an'} {role}"


def _away(error: Exception) -> PageRefused:
    return PageRefused(502, f"Dagster's webserver does not answer ({type(error).__name__}): is it running?")
