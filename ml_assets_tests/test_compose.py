"""The compose file for one host: whole, without secrets, and open to nobody but this host."""

import re
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[1] / "deployment" / "compose"
TEXT = (FOLDER / "compose.yaml").read_text()
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(TEXT)["services"]


def test_every_variable_it_cannot_do_without_is_in_the_example() -> None:
    needed = set(re.findall(r"\$\{(\w+):\?", TEXT))
    example = re.findall(r"^(\w+)=(.*)$", (FOLDER / ".env.example").read_text(), re.MULTILINE)
    assert needed == {name for name, _ in example}
    assert not any(value for _, value in example)


def test_secrets_and_images_come_from_outside() -> None:
    for name, service in SERVICES.items():
        assert service["image"].startswith("${"), name
        for variable, value in service.get("environment", {}).items():
            if re.search(r"PASSWORD|SECRET|ACCESS_KEY|ENCRYPT", variable):
                assert re.fullmatch(r"\$\{\w+:\?\}", value), f"{name}: {variable}"
        assert "command" not in service or "${" not in str(service["command"]), name


def test_only_the_pages_have_a_port_and_only_on_loopback() -> None:
    assert {name for name, service in SERVICES.items() if "ports" in service} == {"webserver"}
    assert all(port.startswith("127.0.0.1:") for port in SERVICES["webserver"]["ports"])


def test_nothing_gains_privileges_and_the_platform_has_none() -> None:
    for name, service in SERVICES.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        if "PLATFORM_IMAGE" in service["image"]:
            assert service["read_only"] is True, name
            assert service["user"] == "65532:65532", name


def test_it_names_only_settings_that_exist() -> None:
    from resources.settings import Settings

    known = {f"ML_ASSETS_{name.upper()}" for name in Settings.model_fields}
    used = {name for service in SERVICES.values() for name in service.get("environment", {})}
    assert {name for name in used if name.startswith("ML_ASSETS_")} <= known


def test_mlflow_runs_with_the_guard_of_the_platforms_ledger() -> None:
    mlflow, platform = SERVICES["mlflow"], SERVICES["webserver"]["environment"]
    command = mlflow["command"]
    assert command[command.index("--app-name") + 1] == "ml-assets-guard"
    for name in ("ML_ASSETS_LEDGER_URL", "ML_ASSETS_ARTIFACTS_URL", "ML_ASSETS_ENVIRONMENT"):
        assert mlflow["environment"][name] == platform[name], name


def test_data_of_postgresql_are_in_its_volume_whatever_the_version() -> None:
    """From 18 on, the images keep them beside a volume at the earlier place, and refuse to start."""
    postgres = SERVICES["postgres"]
    (volume,) = postgres["volumes"]
    assert Path(postgres["environment"]["PGDATA"]).is_relative_to(volume.partition(":")[2])
