"""Dagster's own commands are told in a line what they cannot do, and what to type instead."""

import os
import subprocess
import sys
from pathlib import Path

import click
import dagster as dg
import pytest

from ml_assets.components.training_pipeline import whole_model
from ml_assets.context.home import write_dagster_settings
from ml_assets.dagster_host.commands import CommandRefused, require_home, require_whole_models
from ml_assets.foundation.checkout import ROOT
from ml_assets_tests.components.installation import Installation
from ml_assets_tests.components.readings_pipeline import FEATURES, MODEL
from resources.settings import Settings

WHOLE = whole_model(MODEL)

OURS = Path("/ours")


@pytest.mark.parametrize(
    ("home", "typed", "said"),
    [
        (None, "dg list defs", None),
        (None, "dg launch --assets a", "DAGSTER_HOME is not set"),
        (None, "dagster dev -m ml_assets.definitions", "DAGSTER_HOME is not set"),
        (None, "dagster job execute -j train", "DAGSTER_HOME is not set"),
        (None, "dagster api grpc --instance-ref {}", "DAGSTER_HOME is not set"),  # a child of `dg dev`
        (None, "dagster api grpc --port 4000", None),  # a server of its own keeps no history
        (None, "dagster api execute_run {}", None),
        (None, "pytest", None),
        ("bare", "dagster api grpc --instance-ref {}", "has no dagster.yaml"),
        ("ready", "dg launch --assets a", None),
        ("ready", "dagster api grpc --instance-ref {}", None),
    ],
)
def test_no_command_keeps_history_outside_a_prepared_home(
    tmp_path: Path, home: str | None, typed: str, said: str | None
) -> None:
    (tmp_path / "ready").mkdir()
    (tmp_path / "ready" / "dagster.yaml").touch()
    environment = {"DAGSTER_HOME": str(tmp_path / home)} if home else {}
    if said is None:
        require_home(environment, typed.split(), OURS)
        return
    with pytest.raises(CommandRefused, match=said) as refused:
        require_home(environment, typed.split(), OURS)
    assert str(refused.value).endswith(": run ml-assets doctor once, then export DAGSTER_HOME=/ours")


def test_a_home_that_is_ready_is_only_exported(tmp_path: Path) -> None:
    (tmp_path / "dagster.yaml").touch()
    with pytest.raises(CommandRefused, match=f": export DAGSTER_HOME={tmp_path}$"):
        require_home({}, ["dg", "dev"], tmp_path)


@pytest.fixture(scope="module")
def defs(tmp_path_factory: pytest.TempPathFactory) -> dg.Definitions:
    """Return the definitions of the readings pipeline."""
    return Installation(tmp_path_factory.mktemp("installation")).defs


def _type(defs: dg.Definitions, command: str, option: str, selection: str) -> None:
    """Load `defs` under a command of Dagster's whose `option` selects assets."""
    arguments = ["/venv/bin/dg", command, f"--{option}", selection, "--partition", "2024-01-20"]
    context = click.Context(click.Command(command), info_name=command)
    context.params = {option: selection}
    with context:
        require_whole_models(defs, arguments)


@pytest.mark.parametrize(
    ("selection", "whole"),
    [
        (f"{MODEL}/registered_model", WHOLE),
        (f'key:"{MODEL}/e*"', WHOLE),
        (f"{FEATURES},{MODEL}/evaluation", f"{FEATURES},{MODEL}/evaluation,{WHOLE}"),
    ],
)
def test_a_part_of_a_model_is_answered_with_the_command_for_all(
    defs: dg.Definitions, selection: str, whole: str
) -> None:
    for command, option in (("launch", "assets"), ("materialize", "select")):
        with pytest.raises(CommandRefused) as refused:
            _type(defs, command, option, selection)
        line = f"Select all of them: dg {command} --{option} {whole} --partition 2024-01-20"
        assert str(refused.value).endswith(line)
        assert "\n" not in str(refused.value)
    _type(defs, "launch", "assets", whole)
    assert dg.AssetSelection.from_coercible(whole.split(",")).resolve(defs.resolve_asset_graph())


@pytest.mark.parametrize(
    ("command", "selection"),
    [("launch", FEATURES), ("launch", "group:default"), ("list", f"{MODEL}/evaluation")],
)
def test_whole_models_tables_and_other_commands_pass(
    defs: dg.Definitions, command: str, selection: str
) -> None:
    _type(defs, command, "assets", selection)


def test_dg_launch_ends_with_one_line(tmp_path: Path) -> None:
    """The real command, in a process of its own: six seconds, most of them imports."""
    settings = Settings(home=tmp_path)
    settings.dagster_home.mkdir(parents=True)
    write_dagster_settings(settings)
    asked = [
        *("launch", "--assets", "store_demand/registered_model"),
        *("--partition", "2024-01-08"),
    ]
    done = subprocess.run(
        [Path(sys.executable).with_name("dg"), *asked],
        env=os.environ | {"ML_ASSETS_HOME": str(tmp_path), "DAGSTER_HOME": str(settings.dagster_home)},
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "Error: store_demand/registered_model: a model's assets materialize only together. Select all of them: "
        f"dg launch --assets {whole_model('store_demand')} --partition 2024-01-08"
    )
    assert "Traceback" not in done.stderr
