"""Answers of a token service, and of what stands before it: each gives keys, or an error that the renewal survives."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from ml_assets_tests.resources.launcher.http_server import QuietHandler, serving_in_threads
from resources.addresses import Address
from resources.artifacts import ArtifactsUnavailable
from resources.launcher.kubernetes.worker_keys import WorkersRole

XML = "https://sts.amazonaws.com/doc/2011-06-15/"


@dataclass
class TokenAnswers:
    """Role at a service that gives one answer."""

    role: WorkersRole
    body: str = ""


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[TokenAnswers]:
    """A service of a store outside AWS, for an identity without a region."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")

    class Answers(QuietHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            body = found.body.encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with serving_in_threads(Answers) as address:
        found = TokenAnswers(
            WorkersRole(
                arn="arn:aws:iam::123456789012:role/workers",
                seconds=900,
                endpoint_url=Address(address),
                written=["s3://b/written"],
                read=["s3://b/read"],
            )
        )
        yield found


def answer(inside: str) -> str:
    return f'<AssumeRoleResponse xmlns="{XML}"><AssumeRoleResult>{inside}</AssumeRoleResult></AssumeRoleResponse>'


def keys_until(ends: str) -> str:
    return answer(
        "<Credentials><AccessKeyId>key-of-a-worker</AccessKeyId><SecretAccessKey>s</SecretAccessKey>"
        f"<SessionToken>t</SessionToken><Expiration>{ends}</Expiration></Credentials>"
    )


@pytest.mark.parametrize("ends", ["2026-11-30T20:00:00Z", "2026-11-30T20:00:00", "2026-11-30T21:00:00+01:00"])
def test_an_end_of_keys_has_a_time_zone(service: TokenAnswers, ends: str) -> None:
    service.body = keys_until(ends)
    told = json.loads(service.role.keys("test"))["Expiration"]
    assert told in ("2026-11-30T20:00:00+00:00", "2026-11-30T21:00:00+01:00")


@pytest.mark.parametrize(
    "body",
    ["", "<html>sign in</html>", answer(""), keys_until("soon")],
    ids=["empty", "page", "without keys", "no time"],
)
def test_an_answer_without_keys_may_pass(service: TokenAnswers, body: str) -> None:
    """Else the renewal ends, and an hour later the training."""
    service.body = body
    with pytest.raises(ArtifactsUnavailable, match="gave no keys"):
        service.role.keys("test")
