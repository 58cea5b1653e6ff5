"""Conditional parameters: drawn only beside the values that they need, enumerated as a tree, refused by name."""

from typing import Any

import pytest
from pydantic import ValidationError

from ml_assets.model.steps.search_space import SpaceSection, TuningSection

KIND: dict[str, Any] = {"kind": "categorical", "choices": ["linear", "net", "deep"]}
SPACE: dict[str, Any] = {
    "hyperparameters": {
        # Declared before its parents: the order in the file does not matter.
        "dropout": {
            "kind": "categorical",
            "choices": [0.1, 0.2],
            "when": {"hyperparameters.kind": ["net", "deep"], "hyperparameters.layers": [2]},
        },
        "kind": KIND,
        "layers": {"kind": "int", "low": 1, "high": 2, "when": {"hyperparameters.kind": ["deep"]}},
    },
    "training": {"epochs": {"kind": "int", "low": 3, "high": 4}},
}
TREE = [
    {"kind": kind, **more, "epochs": epochs}
    for kind, more in [
        ("linear", {}),
        ("net", {}),
        ("deep", {"layers": 1}),
        ("deep", {"layers": 2, "dropout": 0.1}),
        ("deep", {"layers": 2, "dropout": 0.2}),
    ]
    for epochs in (3, 4)
]


def _short(point: Any) -> dict[str, Any]:
    return {name.partition(".")[2]: value for name, value in point.items()}


def test_the_points_of_a_conditional_space_are_a_tree() -> None:
    space = SpaceSection.model_validate(SPACE)
    found = [_short(point) for point in space.points]
    assert sorted(found, key=str) == sorted(({**one} for one in TREE), key=str)
    every = list(space.points)
    assert all(space.holds(point) for point in every)
    for point in every:
        lacking = {name: value for name, value in point.items() if name != "hyperparameters.kind"}
        assert not space.holds(lacking)
    assert not space.holds(every[0] | {"hyperparameters.layers": 1})
    # The tree has ten points, although the product of all values has 24.
    TuningSection.model_validate({"space": SPACE, "sampler": "grid", "trials": 10})
    with pytest.raises(ValidationError, match=r"\b10 combinations.* trials 9\b"):
        TuningSection.model_validate({"space": SPACE, "sampler": "grid", "trials": 9})


@pytest.mark.parametrize(
    ("when", "said"),
    [
        ({"hyperparameters.knd": ["net"]}, "`when` names hyperparameters.knd, not in the space: did you mean"),
        ({"hyperparameters.kind": ["tree"]}, "names hyperparameters.kind 'tree', a value that .* never has"),
        ({"hyperparameters.kind": []}, "should have at least 1 item"),
        ({"hyperparameters.rate": [0.3]}, "range of real numbers hardly ever equals one: give hyperparameters.rate"),
        ({"hyperparameters.size": [1]}, "`when` goes in a circle, hyperparameters.size → hyperparameters.size"),
        (
            {"hyperparameters.depth": [1]},
            "goes in a circle, hyperparameters.size → hyperparameters.depth → hyperparameters.size: remove one",
        ),
    ],
)  # fmt: skip
def test_a_condition_that_never_holds_is_refused_at_its_key(when: dict[str, Any], said: str) -> None:
    space = {
        "kind": KIND,
        "rate": {"kind": "float", "low": 0, "high": 1, "step": 0.1},
        "size": {"kind": "int", "low": 1, "high": 2, "when": when},
        "depth": {"kind": "int", "low": 1, "high": 2, "when": {"hyperparameters.size": [1]}},
    }
    with pytest.raises(ValidationError, match=said) as refused:
        SpaceSection.model_validate({"hyperparameters": space})
    ((*place, last),) = {error["loc"] for error in refused.value.errors()}
    assert (*place, last)[:2] == ("hyperparameters", "size")
    assert "when" in (*place, last)


@pytest.mark.parametrize("sampler", ["GPSampler", "QMCSampler"])
def test_a_sampler_that_knows_no_conditions_is_refused(sampler: str) -> None:
    with pytest.raises(ValidationError, match=rf"{sampler} .*`when`") as refused:
        TuningSection.model_validate({"space": SPACE, "sampler": sampler, "trials": 3})
    assert [error["loc"] for error in refused.value.errors()] == [("sampler",)]
