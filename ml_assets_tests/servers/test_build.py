"""Pinned Go modules are built once, by one process, and kept by version and content; so are pinned jars."""

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deployment.testbed.build import CACHE_VARIABLE, MODULES, BuildFailed, build, read_module, recipe_of
from deployment.testbed.jars import CHECKSUMS, jars

PROGRAM = 'package main\n\nvar Word = "unset"\n\nfunc main() { println(Word) }\n'
GO_MOD = """module example.org/pinned

go 1.24

tool example.org/hello/cmd/hello

require example.org/hello v1.2.3

replace example.org/hello => ./hello
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one module, `hello`, that needs no network; and an empty cache."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    folder = tmp_path / "modules" / "hello"
    source = folder / "hello" / "cmd" / "hello"
    source.mkdir(parents=True)
    (source / "main.go").write_text(PROGRAM)
    (folder / "hello" / "go.mod").write_text("module example.org/hello\n\ngo 1.24\n")
    (folder / "go.mod").write_text(GO_MOD)
    (folder / "go.sum").write_text("")
    (folder / "ldflags").write_text("-X main.Word=linked\n")
    return folder.parent


def test_two_at_once_build_once_and_the_third_not_at_all(modules: Path) -> None:
    said: list[str] = []
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: build("hello", modules=modules, say=said.append), range(2))
    assert first == second == build("hello", modules=modules, say=said.append)
    assert [line.split()[0] for line in said] == ["Building", "Built"]
    assert first.name.startswith("hello-v1.2.3-")
    done = subprocess.run([first / "hello"], capture_output=True, text=True, check=True)
    assert done.stderr == "linked\n"


@pytest.mark.parametrize("file", ["go.mod", "go.sum", "ldflags"])
def test_whatever_decides_the_result_is_part_of_its_name(modules: Path, file: str) -> None:
    before = read_module("hello", modules).key
    path = modules / "hello" / file
    path.write_text(path.read_text() + " -s\n" if file == "ldflags" else path.read_text() + "// more\n")
    assert read_module("hello", modules).key != before


@pytest.mark.parametrize(
    ("name", "text", "clearer", "other"),
    [
        (
            "made.py",
            '"""Old."""\nuser = 1\n',
            '"""New words."""\n# Why.\nuser  = 1\n',
            '"""Old."""\nuser = 2\n',
        ),
        ("Dockerfile", "# Old.\nUSER 1\n", "# New\n# words.\nUSER 1\n", "# Old.\nUSER 2\n"),
    ],
)
def test_clearer_words_in_a_recipe_build_nothing_again(
    tmp_path: Path, name: str, text: str, clearer: str, other: str
) -> None:
    def recipe(written: str) -> str:
        (tmp_path / name).write_text(written)
        return recipe_of(tmp_path / name)

    assert recipe(text) == recipe(clearer)
    assert recipe(text) != recipe(other)


def test_a_build_that_fails_is_quoted_and_leaves_nothing(modules: Path, tmp_path: Path) -> None:
    (modules / "hello" / "hello" / "cmd" / "hello" / "main.go").write_text(
        "package main\n\nfunc main() { nonsense }\n"
    )
    with pytest.raises(BuildFailed, match=r"(?s)hello v1\.2\.3 .*undefined: nonsense"):
        build("hello", modules=modules, say=lambda _: None)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["hello.lock"]


def test_a_missing_compiler_is_named(modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BuildFailed, match="`go` is not on"):
        build("hello", modules=modules, say=lambda _: None)


def test_a_module_nobody_pinned_lists_those_there_are(modules: Path) -> None:
    with pytest.raises(BuildFailed, match=r"module 'nothing'.*There are: hello"):
        build("nothing", modules=modules)


def test_every_pinned_module_names_its_version_and_programs() -> None:
    assert {path.parent.name for path in MODULES.glob("*/go.mod")} >= {"versitygw", "lakefs", "kubernetes"}
    for path in MODULES.glob("*/go.mod"):
        module = read_module(path.parent.name)
        assert module.version.startswith("v")
        assert module.tools
    assert shutil.which("go")


@pytest.fixture
def pinned_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of modules with a copy of Kafka's, and an empty cache. Maven keeps what it fetched before."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    shutil.copytree(MODULES / "kafka", tmp_path / "modules" / "kafka")
    return tmp_path / "modules"


def test_jars_that_differ_from_their_checksums_are_refused(pinned_jars: Path, tmp_path: Path) -> None:
    checksums = pinned_jars / "kafka" / CHECKSUMS
    lines = checksums.read_text().splitlines()
    name = lines[0].split()[1]
    checksums.write_text("\n".join([f"{'0' * 64}  {name}", *lines[1:-1]]))
    missing = lines[-1].split()[1]
    with pytest.raises(BuildFailed, match=rf"jars differ from .*: {name}, {missing}"):
        jars("kafka", modules=pinned_jars, say=lambda _: None)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["kafka.lock"]


def test_a_missing_maven_is_named(pinned_jars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BuildFailed, match="`mvn` is not on"):
        jars("kafka", modules=pinned_jars)
