"""`dg scaffold … --from s3://bucket/key`: the written source reads the object again when it changed."""

from collections.abc import Iterator
from datetime import date, timedelta

import click
import pytest
from dagster.components.testing import DefsFolderSandbox, create_defs_folder_sandbox

from ml_assets.components import Dataset, TrainingPipeline
from ml_assets.components.base import SpecComponent
from ml_assets.data.sources.python_source import PythonSource
from ml_assets.data.tables.user_code import resolve_function
from ml_assets_tests.servers.sources.object_warehouse import BUCKET, ObjectWarehouse

DAYS = [date(2024, 1, 1) + timedelta(days=n) for n in range(40)]


@pytest.fixture
def sandbox() -> Iterator[DefsFolderSandbox]:
    """A project with an empty defs folder."""
    with create_defs_folder_sandbox() as made:
        yield made


def _content(lines: list[str]) -> bytes:
    return "\n".join(["day,sold", *lines, ""]).encode()


def test_an_object_becomes_a_source_that_notices_changes(
    sandbox: DefsFolderSandbox, bucket: ObjectWarehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in bucket.server.environment.items():
        monkeypatch.setenv(name, value)
    lines = [f"{day},{day.day}" for day in DAYS]
    bucket.put("sales.csv", _content(lines))
    sandbox.scaffold_component(TrainingPipeline, "shop", scaffold_params={"from": f"s3://{BUCKET}/sales.csv"})
    with sandbox.build_component_tree() as tree:
        [dataset] = [one for one in tree.get_all_components(SpecComponent) if isinstance(one, Dataset)]
        assert isinstance(dataset.spec.source, PythonSource)
        read = resolve_function(dataset.spec.source.function)
        assert read(DAYS[3])["sold"].to_list() == [4]
        bucket.put("sales.csv", _content([*lines, f"{DAYS[-1] + timedelta(days=1)},77"]))
        assert read(DAYS[-1] + timedelta(days=1))["sold"].to_list() == [77]


def test_a_missing_object_is_one_line(
    sandbox: DefsFolderSandbox, bucket: ObjectWarehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in bucket.server.environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(click.ClickException, match=r"s3://warehouse/none\.csv cannot be read") as refused:
        sandbox.scaffold_component(
            TrainingPipeline, "shop", scaffold_params={"from": f"s3://{BUCKET}/none.csv"}
        )
    assert "\n" not in refused.value.message
