"""Meaning of lakeFS's answers, without a server: the statuses no real server gives on request."""

import pytest

from resources.lake import LakeBusy, LakeRefused, LakeUnavailable, NameRefused, RepositoryMissing
from resources.lake.lakefs_api import LakeFSApi, Refusal

SECRET = "wJalrXUtnFEMI"


def api(**settings: float) -> LakeFSApi:
    return LakeFSApi("http://127.0.0.1:9", "tables", "AKIA", SECRET, **settings)


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (429, b'{"message": "Too many attempts, try again later"}', LakeBusy),
        (503, b'{"message": "Throughput exceeded. Slow down and retry"}', LakeBusy),
        (500, b'{"message": "branch is currently locked, try again later"}', LakeBusy),
        (500, b'{"message": "kv: no connection"}', LakeUnavailable),
        (502, "<html>Bad gateway</html>", LakeUnavailable),
        (504, None, LakeUnavailable),
        # Nobody at the address can say whether the keys or the database are to blame.
        (401, b'{"message": "error authenticating request"}', LakeUnavailable),
        (403, b'{"message": "insufficient permissions"}', LakeRefused),
        (404, b'{"message": "repository not found"}', RepositoryMissing),
        (404, b'{"message": "branch not found"}', Refusal),
        (400, b'{"message": "commit: no changes"}', Refusal),
        (403, b'{"message": "cannot write to protected branch"}', Refusal),
        (409, b'{"message": "conflict found"}', Refusal),
        (412, b'{"message": "pre-merge hook aborted"}', Refusal),
    ],
)
def test_each_answer_has_its_type(status: int, body: bytes | str | None, expected: type[Exception]) -> None:
    assert type(api().refused(status, body)) is expected


def test_the_answers_of_everyday_are_told_apart() -> None:
    assert Refusal(400, "commit: no changes").changes_nothing
    assert not Refusal(400, "uncommitted changes (dirty branch)").changes_nothing
    assert Refusal(403, "cannot commit: protected branch").protects
    assert Refusal(403, "cannot delete: default branch").protects
    assert not Refusal(403, "insufficient permissions").protects


def test_a_busy_server_is_asked_again_with_pauses_until_patience_ends() -> None:
    asked: list[int] = []

    def busy() -> None:
        asked.append(1)
        raise LakeBusy("429")

    with pytest.raises(LakeBusy):
        api(patience=1).patiently(busy)
    assert 3 <= len(asked) <= 12


def test_a_server_that_was_busy_once_is_not_noticed() -> None:
    answers = [LakeBusy("429"), LakeUnavailable("503"), None]

    def attempt() -> str:
        answer = answers.pop(0)
        if answer is not None:
            raise answer
        return "done"

    assert api().patiently(attempt) == "done"


def test_a_refusal_is_not_asked_again() -> None:
    asked: list[int] = []

    def refuse() -> None:
        asked.append(1)
        raise Refusal(409, "conflict found")

    with pytest.raises(Refusal):
        api().patiently(refuse)
    assert len(asked) == 1


def test_nobody_at_the_address_is_said_without_credentials() -> None:
    with pytest.raises(LakeUnavailable, match=r"127\.0\.0\.1:9 did not answer") as raised:
        api(patience=0).ask("branches_api", "get_branch", "main")
    assert SECRET not in f"{raised.value!r} {api()!r} {raised.value.__cause__!r} {raised.value.__context__!r}"


@pytest.mark.parametrize("name", ["ab", "Tables", "my_tables", "-tables", "a" * 64])
def test_a_repository_name_lakefs_would_refuse_names_the_setting(name: str) -> None:
    with pytest.raises(NameRefused, match="ML_ASSETS_ENVIRONMENT"):
        LakeFSApi("http://127.0.0.1:9", name, "AKIA", SECRET)
