"""A failed run ends with the sentence of the step that failed, not with Dagster's about it."""

from functools import cached_property
from pathlib import Path

import dagster as dg
import pytest

from ml_assets.context import RunFailed
from ml_assets.context.launch import materialize
from ml_assets.context.project import Project
from ml_assets_tests.prepared_home import prepare_home
from resources.settings import Settings

RETRIES = dg.RetryPolicy(max_retries=1)


class StoreAway(Exception):
    """Any error of ours."""


class OneAsset(Project):
    """A project with one asset, which fails."""

    retries: dg.RetryPolicy | None = None

    @cached_property
    def defs(self) -> dg.Definitions:
        @dg.asset(name="table", retry_policy=self.retries)
        def fails() -> None:
            raise StoreAway("the store did not answer: check its address")

        return dg.Definitions([fails], executor=dg.in_process_executor)


class OneAssetTriedTwice(OneAsset):
    """The same, with Dagster trying again."""

    retries = RETRIES


@pytest.mark.parametrize("project", [OneAsset, OneAssetTriedTwice])
def test_the_sentence_of_the_step_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, project: type[OneAsset]
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    settings = Settings(home=tmp_path / "home")
    prepare_home(settings)
    with pytest.raises(RunFailed) as raised:
        materialize(project(settings), [dg.AssetKey("table")])
    assert str(raised.value) == "table: StoreAway: the store did not answer: check its address"
