"""Reports beside Dagster's pages: those files and no others, as documents in which nothing runs."""

import asyncio
import re
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.routing import Route

from ml_assets.foundation.links import TABLES, partition_address, report_page
from ml_assets.pages.served import SERVED, serving, serving_tables
from ml_assets_tests.tables.orders_table import ORDERS, OrdersTable, days
from resources.addresses import Address
from resources.artifacts import Artifacts, FolderArtifacts, artifacts_of
from resources.lake.local import LocalStore
from resources.platform import Platform
from resources.settings import Settings

NAME = "reports/energy/2024-03-31/fd4040088282"
STUDY = "studies/local/energy/4f1c5a4b2c11"
SECRET = "not a report"


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> FolderArtifacts:
    """One report, and files around it that are nobody's business."""
    made = FolderArtifacts(tmp_path_factory.mktemp("home") / "artifacts")
    folder = made.folder(NAME)
    (folder / "report.html").write_text("<title>energy</title>")
    (folder / "evaluation.json").write_text("{}")
    (folder / "model_card.html").write_text("<title>card</title>")
    (folder / "model_card.md").write_text("# card")
    (folder / "notes.txt").write_text(SECRET)
    study = made.folder(STUDY)
    (study / "report.html").write_text("<title>study</title>")
    (study / "study.json").write_text("{}")
    (study / "evaluation.json").write_text(SECRET)
    for outside in (made.root / "bundles" / "b1", made.root, made.root.parent):
        outside.mkdir(exist_ok=True, parents=True)
        for file in ("report.html", "evaluation.json"):
            (outside / file).write_text(SECRET)
    return made


def _ask(artifacts: Artifacts, path: str, method: str = "GET") -> httpx.Response:
    app = Starlette(routes=[Route(f"/{root}/{{path:path}}", serving(artifacts, root)) for root in SERVED])

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://ui.test") as client:
            return await client.request(method, path)

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("path", "kind", "content"),
    [
        (f"{NAME}/report.html", "text/html", "<title>energy</title>"),
        (f"{NAME}/model_card.html", "text/html", "<title>card</title>"),
        (f"{NAME}/model_card.md", "text/markdown", "# card"),
        (f"{NAME}/evaluation.json", "application/json", "{}"),
        (f"{STUDY}/report.html", "text/html", "<title>study</title>"),
        (f"{STUDY}/study.json", "application/json", "{}"),
    ],
)
def test_a_report_is_a_document_in_which_nothing_runs(
    artifacts: FolderArtifacts, path: str, kind: str, content: str
) -> None:
    answer = _ask(artifacts, f"/{path}")
    assert (answer.status_code, answer.text) == (200, content)
    assert answer.headers["content-type"].startswith(kind)
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_reports_are_only_read(artifacts: FolderArtifacts, method: str) -> None:
    assert _ask(artifacts, f"/{NAME}/report.html", method).status_code == 405


_FOLDERS = [
    "reports",
    "energy",
    "2024-03-31",
    "fd4040088282",
    "studies",
    "local",
    "4f1c5a4b2c11",
    "bundles",
    "b1",
]
_PARTS = st.sampled_from([*_FOLDERS, "..", ".", "", "\\..", "\0"])
_ENDS = st.sampled_from(["report.html", "evaluation.json", "notes.txt", "..", ""])


@given(st.lists(_PARTS, max_size=8), _ENDS, st.booleans())
@example(["..", "bundles", "b1"], "report.html", True)
@example(["energy", "2024-03-31", "fd4040088282", "..", "..", "..", ".."], "report.html", True)
@example(["", *["", "etc"]], "report.html", True)
@example(["energy", "2024-03-31", "fd4040088282"], "notes.txt", False)
def test_no_path_leads_out_of_the_reports(
    artifacts: FolderArtifacts, parts: list[str], end: str, is_quoted: bool
) -> None:
    """A client normalizes `..` unless it is quoted, as an attacker's would not."""
    path = "/".join([*parts, end])
    asked = quote(path, safe="").replace(".", "%2E") if is_quoted else quote(path)
    for root, only in (("reports", NAME), ("studies", STUDY)):
        answer = _ask(artifacts, f"/{root}/{asked}")
        assert SECRET not in answer.text
        if answer.status_code == 200:
            assert f"{root}/{path}".startswith(f"{only}/")


def test_storage_that_does_not_answer_is_told_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    away = artifacts_of("s3://artifacts/x", tmp_path, "http://127.0.0.1:9", patience_seconds=0.1)
    answer = _ask(away, f"/{NAME}/report.html")
    assert answer.status_code == 502
    assert "ML_ASSETS_S3_ENDPOINT_URL" in answer.text


def _ask_for_table(home: Path, path: str) -> httpx.Response:
    handler = serving_tables(Platform(Settings(home=home), 0.1))
    app = Starlette(routes=[Route(f"/team/{TABLES}/{{path:path}}", handler)])

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://ui.test", follow_redirects=True
        ) as client:
            return await client.get(f"/team/{path}")

    return asyncio.run(ask())


def test_a_partition_has_a_page_that_leads_to_its_neighbours(tmp_path: Path) -> None:
    first, second, third = days(3)
    OrdersTable(tmp_path, LocalStore(tmp_path / "lake" / "local")).publish(days(3))
    for path in (f"tables/{ORDERS}", f"tables/{ORDERS}/", f"tables/{ORDERS}/{third}"):
        answer = _ask_for_table(tmp_path, path)
        assert answer.status_code == 200, answer.text
        assert answer.url.path == f"/team/tables/{ORDERS}/{third}"
        assert f"<h1>{ORDERS} {third}</h1>" in answer.text
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    page = _ask_for_table(tmp_path, f"tables/{ORDERS}/{second}")
    links = re.findall(r'<a href="([^"]+)">', page.text)
    assert links == [first, third, third]
    assert _ask_for_table(tmp_path, f"tables/{ORDERS}/{links[0]}").status_code == 200
    assert partition_address(Address("https://x/team"), ORDERS, first) == f"/team/tables/{ORDERS}/{first}"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("tables/datasets/other", f"it has partitions of {ORDERS}"),
        (f"tables/{ORDERS}/2031-01-01", "has no partition 2031-01-01"),
        ("tables/..%2F..%2Fetc/passwd", "is not the name of a table"),
        ("tables/", "is not the name of a table"),
    ],
)
def test_a_partition_that_is_not_on_main_is_told(tmp_path: Path, path: str, said: str) -> None:
    OrdersTable(tmp_path, LocalStore(tmp_path / "lake" / "local")).publish(days(1))
    answer = _ask_for_table(tmp_path, path)
    assert answer.status_code == 404
    assert said in answer.text


@pytest.mark.parametrize(
    ("ui", "prefix"),
    [
        ("http://127.0.0.1:3000", ""),
        ("https://ada:secret@dagster.example.com/team/", "/team"),
    ],
)
def test_a_link_is_right_on_any_host_below_the_pages_prefix(ui: str, prefix: str) -> None:
    assert report_page(Address(ui), NAME) == f"{prefix}/{NAME}/report.html"
