"""`ml-assets canary` in a home without a canary."""

from collections.abc import Callable

from ml_assets.model.release.rules import ReleaseSection
from ml_assets_tests.cli.terminal import Terminal


def test_a_model_without_canary_says_why_nothing_is_compared(
    terminal: Terminal, redeclared: Callable[..., None]
) -> None:
    said = terminal("canary", "store_demand")
    assert (said.status, said.out.strip()) == (
        0,
        "store_demand has no `watch` under `release.canary` in defs.yaml: nothing is compared",
    )
    watch = {"metric": "error_rate", "no_worse_by": 0.01}
    canary = {"share": 0.1, "by": ["store"], "watch": [watch]}
    redeclared(release=ReleaseSection.model_validate({"canary": canary}))
    assert terminal("canary", "store_demand").out.strip() == "store_demand has no canary"
