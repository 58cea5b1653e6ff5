"""Names on the pages of the docs: files, code, commands, options, keys, settings and links must exist. Code blocks run.

Not here: outputs of commands (tour), the glossary and the import table (test_architecture). The changelog speaks of the
past, so only its links are checked.
"""

import ast
import dataclasses
import importlib
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from functools import cache, reduce
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import click
import pytest
import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError

from ml_assets import cli
from ml_assets.components.specs import DatasetSpec, FeatureTableSpec, TrainingPipelineSpec
from ml_assets.data.sources.kinds import section_types
from resources.settings import KubernetesSettings, Settings

ROOT = Path(__file__).parents[1]


@cache
def _tracked() -> tuple[Path, ...]:
    """Files git knows and that exist."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return tuple(path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file())


def _all_pages() -> list[Path]:
    return [path for path in _tracked() if path.suffix == ".md"]


PAGES = [str(page.relative_to(ROOT)) for page in _all_pages() if page.name != "changelog.md"]
_MADE = {
    f"docs/reference/{name}.md"
    for name in ("dataset", "feature-table", "training-pipeline", "commands", "settings")
}
"""Pages that are made from the code, with examples from other pages."""


def _prose(page: Path) -> str:
    """Text of `page` without its code blocks."""
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


def _blocks(page: Path, language: str = r"\w*") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def _spans(page: Path) -> list[str]:
    """Code spans of `page`; not those in the text of a link, whose target another test checks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"\[`[^`]+`\]\([^)]+\)", "", _prose(page)))


_ELSEWHERE = {
    "train_energy": "a job that Dagster makes for the pipeline of the tutorial",
    "bike_trips": "a name for a pipeline of the reader's own",
    "churn": "a pipeline that the reader makes",
    "decode.py": "a file of a bundle",
    "FORWARDED_ALLOW_IPS": "a variable of uvicorn",
    **dict.fromkeys(("card.md", "card.html", "model.sig"), "a dossier"),
    **dict.fromkeys(("ml_assets/resources", "ml_assets/retraining"), "the tag of a run"),
    "training.rank": "a member of what `attach()` returns",
    "DistributedSampler": "torch",
    "hash_record_extended": "PostgreSQL",
    **dict.fromkeys(
        ("AssumeRoleWithWebIdentity", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ENDPOINT_URL_STS"),
        "botocore",
    ),
    "end_training": "accelerate",
    "save_checkpoint": "Lightning",
    **dict.fromkeys(
        ("make_pipeline", "SimpleImputer", "StandardScaler", "LogisticRegression"), "scikit-learn"
    ),
}
"""Name in a code span → reason why no file of the project has it."""


@cache
def _words() -> frozenset[str]:
    """Names in the project's files, tests left out, and the names of all files."""
    code = [
        path
        for path in _tracked()
        if path.suffix not in (".md", ".txt", ".png", ".npz")
        and path.relative_to(ROOT).parts[0] != "ml_assets_tests"
        and path.name != "claims.toml"  # its words become those of a page
    ]
    text = "\n".join([*map(str, _tracked()), *(path.read_text() for path in code)])
    settings = {name for name, _ in _environment()}
    return frozenset(re.findall(r"\w+", text)) | settings


def _environment() -> Iterator[tuple[str, str]]:
    """Yield each environment variable of the settings, and its field."""
    for settings in (Settings, KubernetesSettings):
        prefix = settings.model_config.get("env_prefix", "")
        yield from ((f"{prefix}{name}".upper(), name) for name in settings.model_fields)


@pytest.mark.parametrize("page", sorted({*PAGES} - _MADE))
def test_names_in_code_spans_exist(page: str) -> None:
    unknown = [
        f"{word} in `{span}`"
        for span in _spans(ROOT / page)
        for word in re.findall(r"(?<![>\w])[A-Za-z_]\w+\b(?!\*)", span)
        if ("_" in word or re.search(r"[a-z][A-Z]", word)) and word not in _words() and word not in _ELSEWHERE
    ]
    assert unknown == []


@pytest.mark.parametrize("page", PAGES)
def test_files_in_code_spans_exist(page: str) -> None:
    tops = {path.relative_to(ROOT).parts[0] for path in _tracked()}
    paths = [str(path.relative_to(ROOT)) for path in _tracked()]
    missing = [
        span
        for span in _spans(ROOT / page)
        if re.fullmatch(r"[\w./{},*-]+", span) and not _ELSEWHERE.keys() & {span, *span.split("/")}
        for path in _each(span)
        if (
            (path.split("/")[0] in tops and "/" in path and not any(ROOT.glob(path.rstrip("/"))))
            or (
                re.search(r"\w\.(py|md|sh|toml)$", path)
                and not any(f"/{one}".endswith(f"/{path}") for one in paths)
            )
        )
    ]
    assert missing == []


def _each(span: str) -> list[str]:
    """Return the paths that `a/{b,c}.py` stands for."""
    head, brace, rest = span.partition("{")
    if not brace:
        return [span]
    names, _, tail = rest.partition("}")
    return [f"{head}{name}{tail}" for name in names.split(",")]


@pytest.mark.parametrize("page", PAGES)
def test_targets_of_make_exist(page: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    typed = [*_spans(ROOT / page), *"\n".join(_blocks(ROOT / page)).splitlines()]
    named = {
        target
        for line in typed
        if (made := re.match(r"(?:\$ )?make ((?:[a-z-]+ ?)+)", line))
        for target in made[1].split()
    }
    assert named - targets == set()


@pytest.mark.parametrize("page", PAGES)
def test_environment_variables_exist(page: str) -> None:
    named = set(re.findall(r"\bML_ASSETS_[A-Z0-9_]*[A-Z0-9]\b", (ROOT / page).read_text()))
    assert {name for name in named if name not in _words()} == set()


@pytest.mark.parametrize("page", PAGES)
def test_commands_have_the_options_of_the_docs(page: str) -> None:
    typed = [*_spans(ROOT / page), *"\n".join(_blocks(ROOT / page, "")).splitlines()]
    wrong = [line for line in typed if (words := _of_ml_assets(line)) and not _is_a_command(words)]
    assert wrong == []


def _of_ml_assets(line: str) -> list[str]:
    """Return the words after `ml-assets`; empty for another line."""
    found = re.match(r"(?:\$ )?(?:\.venv/bin/)?ml-assets ([a-z].*)", line)
    return shlex.split(found[1].replace("…", ""), comments=True) if found else []


def _is_a_command(words: list[str]) -> bool:
    command: click.Command | None = cli.group
    for word in words:
        if not isinstance(command, click.Group):
            break
        command = command.get_command(click.Context(command), word)
    if command is None:
        return False
    known = {option for parameter in command.params for option in parameter.opts}
    return {word.partition("=")[0] for word in words if word.startswith("--")} <= known


_SECTIONS = [
    TypeAdapter(spec).json_schema() for spec in (DatasetSpec, FeatureTableSpec, TrainingPipelineSpec)
]
_FREE = {"hyperparameters", "node_selector", "env", "slice", "labels", "formats"}
"""Keys whose values have keys of the user's own."""


@pytest.mark.parametrize("page", PAGES)
def test_keys_of_yaml_exist(page: str) -> None:
    known = {key for schema in _SECTIONS for key, _ in _properties(schema)} | {"type", "attributes"}
    written = [
        key
        for block in _blocks(ROOT / page, "yaml")
        for one in yaml.safe_load_all(block)
        for key in _keys(one)
    ]
    assert [key for key in written if key not in known] == []


@pytest.mark.parametrize("page", PAGES)
def test_yaml_is_valid_apart_from_keys_that_it_leaves_out(page: str) -> None:
    wrong = {
        block: errors
        for block in _blocks(ROOT / page, "yaml")
        for document in yaml.safe_load_all(block.replace("  …\n", ""))
        for one in (document if isinstance(document, list) else [document])
        if (errors := _errors_of(one.get("attributes", one)))
    }
    assert wrong == {}


@cache
def _sections_of_specs() -> tuple[Any, ...]:
    """Return all types of sections, those of the components first."""
    found: dict[Any, None] = {}

    def add(annotation: Any) -> None:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            fields: list[Any] = [field.annotation for field in annotation.model_fields.values()]
        elif isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
            fields = list(get_type_hints(annotation).values())
        else:
            fields = []
        if fields and annotation in found:
            return
        if fields:
            found[annotation] = None
        for below in (*fields, *get_args(annotation)):
            add(below)

    for spec in (DatasetSpec, FeatureTableSpec, TrainingPipelineSpec, *section_types().values()):
        add(spec)
    return tuple(found)


def test_examples_of_keys_are_values_that_their_keys_take() -> None:
    declared = [
        (Annotated[field.annotation, field], example)
        for section in _sections_of_specs()
        for field in getattr(section, "model_fields", {}).values()
        for example in field.examples or ()
    ]
    assert declared
    for annotation, example in declared:
        TypeAdapter(annotation).validate_python(example)


_READERS_OWN = re.compile(
    "cannot (import|find) '(…|shop|ml_assets.defs.(energy|parcels))|is not a public key"
)
"""Errors about code and keys that only a reader has."""


def _errors_of(document: dict[str, Any]) -> list[str]:
    """Return why `document`, with some keys of a section, is in no section; empty if it is."""
    errors: list[str] = ["no section has these keys"]
    for section in _sections_of_specs():
        known = getattr(section, "model_fields", None) or {
            field.name: field for field in dataclasses.fields(section)
        }
        names = {*known, *(field.alias for field in known.values() if getattr(field, "alias", None))}
        if document.keys() <= names:
            try:
                TypeAdapter(section).validate_python(document)
            except ValidationError as error:
                errors = [
                    f"{section.__name__}: {one['loc']} {one['msg']}"
                    for one in error.errors()
                    if one["type"] != "missing" and not _READERS_OWN.search(one["msg"])
                ]
            else:
                errors = []
            if not errors:
                return []
    return errors


_NEEDS_A_HOME = {
    "training = attach()": "training/test_scripts.py",
    "with training.checkpoint(step": "training/test_scripts.py",
    "import torch\nfrom torch import nn\nfrom torch.nn import functional\n\nfrom ml_assets.model.training.script": (
        "training/test_scripts.py"
    ),
    "from datetime import UTC, datetime\nimport ml_assets": "cli/end_to_end/test_launch.py and test_context.py",
    "import ml_assets\n\nreader": "tour/test_my_csv.py",
    "from datetime import timedelta\n\nimport polars": "tour/test_my_csv.py",
    "import ml_assets\n\ncontext = ml_assets.open()\ncontext.plan": "cli/end_to_end/test_context.py",
    'model = mlflow.pyfunc.load_model("models:/parcels': "layouts/picture_pipeline.py",
    'model = mlflow.pyfunc.load_model("models:/tiny_text': "layouts/test_tiny_text.py",
    "import mlflow\nimport pandas": "tour/test_tour.py",
    "import os\n\nfrom ml_assets_client": "api/test_client.py",
}
"""Begin of a Python block → where its calls run, on a home with models. Its names are checked here."""
_SCAFFOLDED = ("ml_assets.defs.visitors",)
"""Pipelines that the pages let their reader make."""
_ALIASES = {"np": "numpy", "pl": "polars", "pd": "pandas", "dcp": "torch.distributed.checkpoint"}
"""Names that a block may use without their import."""


@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_run_and_their_names_exist(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recipe called a function of torch that does not exist."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "clients" / "python"))
    for block in _blocks(ROOT / page, "python"):
        for name in _dotted_names(block):
            parts = name.split(".")
            reduce(getattr, parts[1:], importlib.import_module(_ALIASES.get(parts[0], parts[0])))
        if not block.startswith(tuple(_NEEDS_A_HOME)):
            import polars as pl

            inputs = {"datasets/sales": pl.LazyFrame({"week": [1], "store": [2], "units": [3]})}
            names = {short: importlib.import_module(name) for short, name in _ALIASES.items()}
            exec(compile(block, page, "exec", dont_inherit=True), names | _DATES | {"inputs": inputs})


_DATES = {name: getattr(importlib.import_module(of), name) for of, name in (
    ("collections.abc", "Mapping"), ("datetime", "date"),
)}  # fmt: skip


def _dotted_names(block: str) -> set[str]:
    """Return `module.attribute…` of each module that the block imports or that has an alias, and what it imports."""
    tree, modules, names = ast.parse(block), {one: one for one in (*_ALIASES, "torch", "mlflow")}, set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module not in _SCAFFOLDED:
            module = importlib.import_module(node.module)
            for one in node.names:
                if not hasattr(module, one.name):
                    importlib.import_module(f"{node.module}.{one.name}")
        if isinstance(node, ast.Import):
            modules |= {one.asname or one.name: one.name for one in node.names}
    for node in ast.walk(tree):
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if isinstance(node, ast.Name) and node.id in modules and parts:
            names.add(".".join([modules[node.id], *reversed(parts)]))
    return names


@pytest.mark.parametrize("page", PAGES)
def test_json_blocks_are_json(page: str) -> None:
    for block in _blocks(ROOT / page, "json"):
        for line in block.splitlines() if block.count("\n{") else [block]:
            json.loads(line)


def test_a_name_that_does_not_exist_is_found() -> None:
    names = _dotted_names("torch.optim.optimizer.register_optimizer_step_post_hook(self.update)")
    with pytest.raises(AttributeError):
        reduce(getattr, max(names).split(".")[1:], importlib.import_module("torch"))


@pytest.mark.parametrize("page", PAGES)
def test_dotted_keys_in_code_spans_exist(page: str) -> None:
    sections = {
        name for schema in _SECTIONS for name, value in schema["properties"].items() if _fields(schema, value)
    }
    wrong = [
        span
        for span in _spans(ROOT / page)
        if re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", span)
        and span.split(".")[0] in sections
        and span.split(".")[-1] not in ("py", "json", "safetensors", "onnx", "yaml", "parquet")
        and span not in _ELSEWHERE
        and not any(_has(schema, span.split(".")) for schema in _SECTIONS)
    ]
    assert wrong == []


def test_defaults_on_the_pages_are_those_of_the_code() -> None:
    """A number in parentheses behind a key is its default, as in "`retry_seconds` (3600)", "`margin` (default 0)"."""
    defaults: dict[str, set[float]] = {}
    for schema in _SECTIONS:
        for key, value in _properties(schema):
            if isinstance(value.get("default"), int | float):
                defaults.setdefault(key, set()).add(float(value["default"]))
    said = [
        (page, key, float(number))
        for page in PAGES
        for key, number in re.findall(
            r"`(?:\w+\.)*(\w+)` \((?:default:? )?(\d+(?:\.\d+)?)\)", (ROOT / page).read_text()
        )
        if key in defaults
    ]
    assert len(said) > 3
    assert [one for one in said if one[2] not in defaults[one[1]]] == []


def _properties(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield all properties of a JSON schema, name and schema, at any depth."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {}).items()
    for value in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _properties(value)


def _keys(value: Any) -> Iterator[str]:
    """Yield all keys of a YAML document, without those below a key of `_FREE`."""
    if isinstance(value, list):
        for one in value:
            yield from _keys(one)
    if isinstance(value, dict):
        for key, below in value.items():
            if isinstance(key, str) and not re.fullmatch(r"[\d-]+", key):  # a partition
                yield key
            if key not in _FREE:
                yield from _keys(below)


def _fields(schema: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
    """Return key → value of the section `value`; empty if it is not a section."""
    for one in (value, *value.get("anyOf", ()), *value.get("allOf", ())):
        if "$ref" in one:
            one = schema["$defs"][one["$ref"].rpartition("/")[2]]
        if "properties" in one:
            return one["properties"]
    return {}


def _has(schema: dict[str, Any], path: list[str]) -> bool:
    value: dict[str, Any] = schema
    for key in path:
        fields = _fields(schema, value)
        if key not in fields:
            return False
        value = fields[key]
    return True


def test_links_lead_to_files_and_headings() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in _all_pages()
        for link in re.findall(r"\]\(([^)\s]+)", _prose(page))
        if "://" not in link and not _leads_somewhere(page, link)
    ]
    assert broken == []


def _leads_somewhere(page: Path, link: str) -> bool:
    path, _, heading = link.partition("#")
    target = page.parent / path if path else page
    return target.exists() and (not heading or heading in _headings(target))


def _headings(page: Path) -> set[str]:
    """Anchors that GitHub gives the headings of `page`."""
    titles = re.findall(r"^#+ (.+)$", _prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_index_of_the_docs_lists_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    listed = {(index.parent / link).resolve() for link in re.findall(r"\]\(([^)#\s]+)", index.read_text())}
    pages = {page for page in _all_pages() if index.parent in page.parents}
    assert pages - listed == {index}
