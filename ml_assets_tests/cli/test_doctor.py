"""`ml-assets doctor` names the part that is failed and what helps."""

import pytest

from ml_assets_tests.cli.terminal import Terminal

PARTS = [
    "python",
    "packages",
    "settings",
    "home",
    "clock",
    "definitions",
    "lake",
    "artifacts",
    "ledger",
    "accounts",
    "tracker",
    "production",
    "registry",
    "rules",
    "dagster storage",
    "dagster events",
    "processes",
]


def test_a_fresh_home_is_well(terminal: Terminal) -> None:
    said = terminal("doctor")
    assert said.status == 0, said.out
    assert [line[6:22].strip() for line in said.out.splitlines() if line.startswith("ok ")] == PARTS
    assert said.out.splitlines()[-1] == "All checks passed."
    assert "none: nobody checks that you are ada. To begin: ml-assets accounts add NAME" in said.out


def test_named_parts_are_checked_alone(terminal: Terminal) -> None:
    said = terminal("doctor", "home", "ledger")
    assert said.status == 0
    assert [line[6:22].strip() for line in said.out.splitlines() if line.startswith("ok ")] == [
        "home",
        "ledger",
    ]
    unknown = terminal("doctor", "leger")
    assert unknown.status == 2
    assert "no check is named 'leger': did you mean 'ledger'?" in unknown.err


def test_a_pod_without_the_address_of_its_ledger_is_refused(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Secret may lack the key. Each pod would have a ledger of its own, and lose it at its end."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("ML_ASSETS_LAUNCHER", "kubernetes")
    said = terminal("doctor")
    assert said.status == 1
    assert "in a pod, ML_ASSETS_LEDGER_URL must be set" in said.err
    monkeypatch.setenv("ML_ASSETS_LEDGER_URL", f"sqlite:///{terminal.home}/ledger.db")
    assert terminal("doctor", "ledger").status == 0


def test_a_failing_part_is_named_with_its_remedy(terminal: Terminal) -> None:
    """The other parts are still checked. The ledger alone knows what is in production, and who has an account."""
    (terminal.home / "ledger.db").write_text("this was a database")
    said = terminal("doctor")
    assert said.status == 1
    failed = [line for line in said.out.splitlines() if line.startswith("FAIL")]
    assert [line[6:22].strip() for line in failed] == [
        "ledger",
        "accounts",
        "production",
        "registry",
        "rules",
    ]
    assert len([line for line in said.out.splitlines() if line.startswith("ok ")]) == len(PARTS) - 5


def test_a_dagster_home_of_somebodys_own_is_not_overwritten_silently(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", "/somewhere/else")
    assert terminal("plan", "store_demand", "2024-01-01").err.splitlines()[0] == (
        f"DAGSTER_HOME=/somewhere/else is not used: Dagster's history is in {terminal.home / 'dagster'} "
        "(ML_ASSETS_HOME moves it)"
    )


def test_a_misspelt_setting_is_named_with_the_nearest(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ML_ASSETS_KUBERNETES_S3_ENDPOINT_URL", "http://s3")
    monkeypatch.setenv("ML_ASSETS_LAKE_ULR", "http://lake")
    (failed,) = [line for line in terminal("doctor").out.splitlines() if line.startswith("FAIL")]
    assert failed.endswith(" ML_ASSETS_LAKE_ULR is not a setting: did you mean ML_ASSETS_LAKE_URL?")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ML_ASSETS_LAUNCHER", "slurm-secret"),
        ("ML_ASSETS_KUBERNETES_LEASE_SECONDS", "long-secret"),
        ("ML_ASSETS_KUBERNETES_MOUNTS", "{secret"),
    ],
)
def test_a_wrong_setting_is_one_sentence_without_its_value(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    said = terminal("plan", "store_demand", "2024-01-01")
    assert said.status == 1
    assert name in said.err
    assert "Traceback" not in said.err
    assert "secret" not in said.err
