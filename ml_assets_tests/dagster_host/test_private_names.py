"""Names of Dagster that are not public: each exists in the pinned version, and only `dagster_host` imports them."""

import ast
import importlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.storage import tags

import ml_assets
from ml_assets.components import metadata
from ml_assets.dagster_host.storage import OneFileEventLog, OneFileStorage

PRODUCT = Path(ml_assets.__file__).parent
HOST = PRODUCT / "dagster_host"
_PRIVATE = ("dagster._", "dagster.components.core.", "dagster_postgres.", "dagster_webserver.")


def _private(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield line, module and name of each import of a private name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(_PRIVATE):
            yield from ((node.lineno, node.module or "", one.name) for one in node.names)


NEEDED = [(path, *found) for path in sorted(HOST.glob("*.py")) for found in _private(path)]


def _has(module: str, name: str) -> bool:
    try:
        return hasattr(importlib.import_module(module), name) or bool(find_spec(f"{module}.{name}"))
    except ImportError:
        return False


def test_dagster_has_each_private_name() -> None:
    """The modules are read, not imported: after a move they would end in an `ImportError` of one name."""
    assert len(NEEDED) > 30
    lacking = [
        f"Dagster {dg.__version__} has no {name} in {module}: find its new place, and change "
        f"ml_assets/dagster_host/{path.name}:{line} alone; its docstring names the public alternative"
        for path, line, module, name in NEEDED
        if not _has(module, name)
    ]
    assert lacking == [], "\n".join(lacking)


_METHODS = {
    OneFileEventLog: (
        "_init_db",
        "_connect",
        "_store_asset_check_evaluation_planned",
        "_store_asset_event",
        "_store_asset_event_tags",
        "prepare_insert_event",
        "prepare_insert_event_batch",
        "get_db_path",
    ),
    OneFileStorage: ("from_config_value",),
}
"""Class of ours → methods of Dagster's that it overrides or calls."""


@pytest.mark.parametrize("ours", _METHODS)
def test_dagster_has_each_method_that_a_storage_changes(ours: type) -> None:
    """An override of a method that Dagster renamed would do nothing, without an error."""
    parents = [one for one in ours.__mro__ if one.__module__.startswith("dagster")]
    lacking = [
        f"Dagster {dg.__version__} has no method {name} for {ours.__name__}: compare {ours.__module__} with its parents"
        for name in _METHODS[ours]
        if not any(name in vars(one) for one in parents)
    ]
    assert lacking == [], "\n".join(lacking)


def test_a_step_has_a_list_of_events() -> None:
    @dg.op
    def asked(context: dg.OpExecutionContext) -> None:
        assert context._events == [], "ml_assets/dagster_host/steps.py appends to this list"

    @dg.job
    def asking() -> None:
        asked()

    assert asking.execute_in_process().success


def test_tags_are_those_of_dagster() -> None:
    assert metadata.WILL_RETRY == tags.WILL_RETRY_TAG
    assert metadata.RETRIED_AS == tags.AUTO_RETRY_RUN_ID_TAG
    assert metadata.ROOT_RUN == tags.ROOT_RUN_ID_TAG
    assert metadata.PARTITION == tags.PARTITION_NAME_TAG
    assert (metadata.RANGE_START, metadata.RANGE_END) == (
        tags.ASSET_PARTITION_RANGE_START_TAG,
        tags.ASSET_PARTITION_RANGE_END_TAG,
    )


def test_only_the_host_imports_private_names() -> None:
    elsewhere = [
        f"{path.relative_to(PRODUCT)}:{line}: {module}.{name}: import it from a module of ml_assets/dagster_host"
        for path in sorted(PRODUCT.rglob("*.py"))
        if path.parent != HOST
        for line, module, name in _private(path)
        if module.startswith("dagster._")
    ]
    assert elsewhere == [], "\n".join(elsewhere)
