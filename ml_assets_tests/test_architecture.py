"""The rules of the house that no tool of `make lint` knows: locked requirements, what stays out."""

import ast
import gc
import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import grimp
import pytest

from resources.extras import EXTRA_OF

ROOT = Path(__file__).parents[1]
_GENERATED = "clients/python/ml_assets_client/"


def _tracked() -> list[Path]:
    """Files git knows and that exist, but for the generated client."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    names = (one for one in listed.stdout.split("\0") if one and not one.startswith(_GENERATED))
    return [path for name in names if (path := ROOT / name).is_file()]


@cache
def _nodes(path: Path) -> list[ast.AST]:
    """Nodes of a Python file. Parsing all files takes seconds, so each is parsed once."""
    gc.disable()  # millions of nodes and no cycle: the collector would visit all of them again and again
    try:
        return list(ast.walk(ast.parse(path.read_text())))
    finally:
        gc.enable()


def test_modules_say_what_belongs_in_them() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in _tracked()
        if path.suffix == ".py"
        and path.read_text().strip()
        and not path.read_text().lstrip().startswith(('"""', 'r"""'))
    ]
    assert silent == []


_OPENINGS = {
    "How",
    "In",
    "Of",
    "That",
    "What",
    "When",
    "Where",
    "Whether",
    "Which",
    "Who",
    "Whom",
    "Whose",
    "Why",
}


def test_docstrings_begin_with_a_verb_or_with_the_thing() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{statement.lineno}: {text.strip().splitlines()[0]}"
        for path in _tracked()
        if path.suffix == ".py"
        for node in _nodes(path)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for statement in node.body
        if isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(text := statement.value.value, str)
        and text.strip()
        and text.split()[0].strip(",.:;") in _OPENINGS
    ]
    assert found == []


LONGEST_TEST_NAME = 70
"""Characters. The reason behind a behaviour goes into the docstring of its test."""


def test_names_of_tests_are_short() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}"
        for path in _tracked()
        if path.suffix == ".py"
        for node in _nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and len(node.name) > LONGEST_TEST_NAME
    ]
    assert long == []


def test_the_glossary_defines_each_term_once_in_order() -> None:
    lines = (ROOT / "docs" / "glossary.md").read_text().splitlines()
    terms = [line.split(" | ")[0].removeprefix("| ") for line in lines if line.startswith("| ")][1:]
    assert len(terms) > 60
    assert [term.partition(" (")[0] for term in terms] == sorted(term.partition(" (")[0] for term in terms)
    assert len(set(terms)) == len(terms)


def test_no_other_page_redefines_a_glossary_term() -> None:
    """A term has one meaning. A second table `| term | meaning |` would give it another."""
    pages = [path for path in _tracked() if path.suffix == ".md" and path.name != "glossary.md"]
    tables = [str(path.relative_to(ROOT)) for path in pages if "| term | meaning |" in path.read_text()]
    assert tables == []


_RETIRED = {
    "audit hook": r"lake[_ ]gate|gate_stands|Gate(Missing|Refused)",
    "blob": r"(?i)(?<!throughput_)(?<!re)(?<!up)samples?(?![a-z])",
    "chunk": r"\bInBlocks\b",
    "layer": r"\bblocks_of\b|\bblocks\.\*",
    "preflight": r"\btry_out\b|step\.trial\b",
    "purge, prune": r"\bswe(ep|eps|eping|eper|pt)\b",
    "validate, decide, classify": r"(?i)judg",
}
"""The glossary's word → words that stood for the same thing."""


@pytest.mark.parametrize("word", _RETIRED)
def test_code_uses_the_words_of_the_glossary(word: str) -> None:
    retired = re.compile(_RETIRED[word])
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in _code()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if retired.search(line)
    ]
    assert found == []


def test_no_public_class_name_stands_for_two_things() -> None:
    """Tests and benchmarks take no name of the platform or of the testbed. Their own models may share a name."""
    ours = _classes(_of("ml_assets", "resources", "deployment"))
    assert _repeated(ours) == {}
    names = {name for name, _ in ours}
    assert [one for one in _classes(_of("ml_assets_tests", "benchmarks")) if one[0] in names] == []


def _classes(paths: list[Path]) -> list[tuple[str, str]]:
    """Public classes of Python files, each with its file."""
    return [
        (node.name, str(path.relative_to(ROOT)))
        for path in paths
        for node in _nodes(path)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]


def _code() -> list[Path]:
    """Python files of the platform, without tests, benchmarks and deployment."""
    return _of("ml_assets", "resources")


def _of(*folders: str) -> list[Path]:
    """Python files below folders of the repository."""
    return [
        path for path in _tracked() if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in folders
    ]


def _repeated(named: list[tuple[str, str]]) -> dict[str, list[str]]:
    """Name → its files, for names that more than one place defines."""
    places: dict[str, list[str]] = {}
    for name, place in named:
        places.setdefault(name, []).append(place)
    return {name: found for name, found in places.items() if len(found) > 1}


def _import_table() -> dict[str, set[str]]:
    """Folder or module of the table in architecture.md → last parts of the names of the folders that it imports."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| `(ml_assets/[\w/]+|resources)(?:\.py)?` \| .* \| (.*) \|$", page, re.MULTILINE)
    return {folder.replace("/", "."): set(re.findall(r"`(\w+)`", imports)) for folder, imports in rows}


_WITH_ROOMS = ("data", "model", "use", "extras")
"""Folders of ml_assets whose rooms have a row each."""


def _folders() -> set[str]:
    top = {path.parent.name for path in (ROOT / "ml_assets").glob("*/__init__.py")} - {*_WITH_ROOMS}
    rooms = {
        f"{name}.{path.parent.name}"
        for name in _WITH_ROOMS
        for path in (ROOT / "ml_assets" / name).glob("*/__init__.py")
    }
    return {"resources", *(f"ml_assets.{name}" for name in top | rooms)}


def test_the_import_table_says_what_the_code_imports() -> None:
    """Row by row: folders of the table that any module of the row imports, at its top or within a function."""
    table, folders = _import_table(), _folders()
    graph = grimp.build_graph("ml_assets", "resources")
    beside = {f"ml_assets.{path.stem}" for path in (ROOT / "ml_assets").glob("*.py")} - {"ml_assets.__init__"}
    assert table.keys() == folders | beside
    found = {
        row: {
            other.rpartition(".")[2]
            for other in folders - {row}
            if graph.direct_import_exists(importer=row, imported=other, as_packages=True)
        }
        for row in table
    }
    assert found == table


def test_the_core_imports_no_extra_at_its_top() -> None:
    """It works without the packages of the extras, and loads without their time."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {name}"
        for path in _code()
        if path.relative_to(ROOT).parts[:2] != ("ml_assets", "extras")
        for node in _at_the_top(ast.parse(path.read_text()))
        for name in (
            [node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names]
        )
        if name.startswith("ml_assets.extras")
    ]
    assert found == []


def _at_the_top(module: ast.Module) -> list[ast.Import | ast.ImportFrom]:
    """Imports that run with the module, without those for types alone."""
    return [node for node in module.body if isinstance(node, ast.Import | ast.ImportFrom)]


_KEYS = {"evaluation.compared_with", "scoring.retrain", "release.canary"}
"""Keys of a defs.yaml whose first part is also the name of a folder."""
_ENDINGS = (".py", ".yaml", ".json", ".j2", ".safetensors", ".npz")
"""Endings of files, which are no modules."""


def test_docstrings_name_modules_that_exist() -> None:
    """“Not here: … (`release.rules`)” sends a reader to a module; a module that was moved takes its readers along."""
    of_module = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in _code()
    }
    folders = {part for name in of_module for part in name.split(".")[:-1]} | {"pipeline"}
    known = {
        f"{end}{bound}"
        for name, path in of_module.items()
        for start in range(name.count(".") + 1)
        for end in [name.split(".", start)[-1]]
        for bound in ("", *(f".{one}" for one in _bound_in(path)))
    }
    missing = [
        f"{path.relative_to(ROOT)}: {named}"
        for path in _code()
        for named in re.findall(
            r"[`(]([a-z_]+(?:\.[a-z_0-9]+)+)[`),]", ast.get_docstring(ast.parse(path.read_text())) or ""
        )
        if named.split(".")[0] in folders and not named.endswith(_ENDINGS)
        if named not in known | _KEYS
    ]
    assert missing == []


def test_no_file_names_a_package_registry() -> None:
    # Joined here, so that this file does not name them either.
    hosts = [".".join(parts) for parts in (("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "org"))]
    hosts += [
        ".".join(parts) for parts in (("conda", "anaconda"), ("crates", "io"), ("proxy", "golang", "org"))
    ]
    naming = [
        f"{path.relative_to(ROOT)}: {host}"
        for path in _tracked()
        for host in hosts
        if host in path.read_bytes().decode(errors="ignore")
    ]
    assert naming == []


@pytest.mark.parametrize("name", ["dev.txt", "core.txt", "build.txt", "setup.txt", "data.txt"])
def test_requirements_are_pinned_and_hashed_without_addresses(name: str) -> None:
    text = (ROOT / "deployment" / "requirements" / name).read_text()
    requirements = text.replace("\\\n", " ").splitlines()
    pinned = re.compile(r"^[A-Za-z0-9._-]+==\S+ (;.*? )? *(--hash=sha256:[0-9a-f]{64} *)+$")
    assert requirements
    assert [line[:60] for line in requirements if not pinned.match(line)] == []
    assert "://" not in text
    assert "--index" not in text


def test_images_hold_the_tested_pins() -> None:
    """Pins of the images are those of the tests, and an image for scripts has all that the trainer has."""
    deployment = ROOT / "deployment"
    images = {path.stem: _pins(path) for path in (deployment / "images").glob("*.txt")}
    tested = _pins(deployment / "requirements" / "dev.txt")
    assert images.keys() >= {path.stem for path in (deployment / "images").glob("*.in")}
    for name, pins in images.items():
        # Without the systems: developers' packages ask for some of these on more systems.
        assert _versions(pins) <= _versions(tested), f"{name}: run make lock"
        assert name == "platform" or pins >= images["trainer"]


def _pins(lock: Path) -> set[str]:
    """`name==version` of each, with the systems it is for where they are not all."""
    return {line.rstrip("\\ ") for line in lock.read_text().splitlines() if re.match(r"\w", line)}


def _versions(pins: set[str]) -> set[str]:
    return {pin.partition(" ;")[0] for pin in pins}


def test_no_pretended_server_is_among_the_locked_requirements() -> None:
    pretenders = (
        r"moto|localstack|fakeredis|fake-?s3|responses|requests-mock|respx|httpretty|vcrpy|aioresponses"
        r"|wiremock|mockserver.*|pytest-(httpserver|localserver|mock|responses|recording|httpx|vcr)"
    )
    folder = ROOT / "deployment" / "requirements"
    named = {
        line.partition("==")[0].partition("[")[0].lower()
        for path in folder.glob("*.txt")
        for line in path.read_text().splitlines()
        if "==" in line
    }
    assert len(named) > 200
    assert {name for name in named if re.fullmatch(pretenders, name)} == set()


def _bound_in(path: Path) -> set[str]:
    """Names that a module binds, anywhere outside of its functions and classes."""
    bound: set[str] = set()
    for node in _nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {(one.asname or one.name).partition(".")[0] for one in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
    return bound


def test_names_that_modules_import_exist() -> None:
    """Nobody collects the tests of a cluster each day: one imported a name that was gone for a week."""
    ours = {path.relative_to(ROOT).parts[0] for path in _tracked() if path.suffix == ".py"}
    missing = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.module}.{one.name}"
        for path in _tracked()
        if path.suffix == ".py"
        for node in _nodes(path)
        if isinstance(node, ast.ImportFrom) and not node.level and node.module
        if node.module.partition(".")[0] in ours
        for one in node.names
        if not _exists(node.module, one.name)
    ]
    assert missing == []


@cache
def _exists(module: str, name: str) -> bool:
    folder = ROOT.joinpath(*module.split("."))
    if (folder / name).is_dir() or (folder / f"{name}.py").is_file():
        return True
    file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    return file.is_file() and name in _bound_in(file)


def test_each_extra_of_a_package_is_one_that_brings_it() -> None:
    """A person whose package is missing types what the message names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {
        name: [re.split(r"[\[<>=;]", one)[0].lower().replace("-", "_") for one in brought]
        for name, brought in project["optional-dependencies"].items()
    }
    core = {re.split(r"[\[<>=;]", one)[0].lower().replace("-", "_") for one in project["dependencies"]}
    assert set(EXTRA_OF.values()) <= extras.keys()
    assert core & EXTRA_OF.keys() == set()
    directly = {
        name: extra for name, extra in EXTRA_OF.items() if any(name in one for one in extras.values())
    }
    assert [name for name, extra in directly.items() if name not in extras[extra]] == []
    assert len(directly) > 12
