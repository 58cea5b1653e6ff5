"""Gradient-boosted trees of scikit-learn as an ONNX graph, which serves them without scikit-learn.

Here: histogram gradient boosting (`HistGradientBoostingClassifier` of two classes, `HistGradientBoostingRegressor`),
whose trees handle missing values. skl2onnx 1.20 forgets the exponential of a poisson loss, and reads splits by category
as thresholds. Not here: other estimators and libraries (libraries). The script's environment provides scikit-learn and
onnx; this module imports them when called.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (scikit-learn is untyped, onnx is typed in part)

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resources.job.errors import BadConfiguration

_OPSETS = {"": 18, "ai.onnx.ml": 3}
_IR_VERSION = 10
_LINKS = {"IdentityLink": None, "LogLink": "Exp", "LogitLink": "Sigmoid"}
"""scikit-learn's link function of a loss → the operator that turns the sum over trees into a prediction."""


def trees_to_onnx(estimator: Any) -> bytes:
    """Return the graph of a fitted estimator: matrix `[B, features]` float32, NaN where missing → `[B, 1]` float32, the
    probability of the second class or the value.

    Its answers equal the estimator's, except for the rounding of a float32 sum. Raises `BadConfiguration` for other
    estimators, more than two classes, or splits by category.
    """
    from onnx import TensorProto, checker, helper

    predictors: list[list[Any]] | None = getattr(estimator, "_predictors", None)
    if predictors is None:
        raise BadConfiguration(
            f"{type(estimator).__name__} is not a fitted histogram gradient boosting of scikit-learn: fit it first, or "
            "convert it with skl2onnx or onnxmltools"
        )
    if any(len(trees) != 1 for trees in predictors):
        raise BadConfiguration(
            f"it has {len(predictors[0])} classes, for which scikit-learn's histogram gradient boosting cannot become "
            "a graph: hand in a model of LightGBM or XGBoost, or one with two classes"
        )
    link = type(estimator._loss.link).__name__
    if link not in _LINKS:
        raise BadConfiguration(
            f"loss {estimator.loss!r} has the unsupported link {link}: choose another loss"
        )
    attributes = _ensemble(trees[0].nodes for trees in predictors)
    base = float(np.ravel(estimator._baseline_prediction)[0])
    nodes = [
        helper.make_node(
            "TreeEnsembleRegressor",
            ["matrix"],
            ["sum"],
            domain="ai.onnx.ml",
            n_targets=1,
            base_values=[base],
            **attributes,
        )
    ]
    operator = _LINKS[link]
    nodes.append(helper.make_node(operator or "Identity", ["sum"], ["prediction"]))
    graph = helper.make_graph(
        nodes,
        "boosted_trees",
        [helper.make_tensor_value_info("matrix", TensorProto.FLOAT, ["rows", int(estimator.n_features_in_)])],
        [helper.make_tensor_value_info("prediction", TensorProto.FLOAT, ["rows", 1])],
    )
    model = helper.make_model(
        graph,
        producer_name="ml-assets",
        opset_imports=[helper.make_opsetid(domain, version) for domain, version in _OPSETS.items()],
        ir_version=_IR_VERSION,
    )
    checker.check_model(model)
    return model.SerializeToString(deterministic=True)


def _ensemble(trees: Iterable[NDArray[Any]]) -> dict[str, Any]:
    """Return the attributes of ONNX's TreeEnsembleRegressor, from one node table of scikit-learn per tree."""
    nodes: dict[str, list[Any]] = {
        name: []
        for name in (
            "treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids",
            "missing_value_tracks_true",
        )
    }  # fmt: skip
    targets: dict[str, list[Any]] = {name: [] for name in ("treeids", "nodeids", "ids", "weights")}
    for tree, table in enumerate(trees):
        is_leaf = table["is_leaf"].astype(bool)
        if table["is_categorical"][~is_leaf].any():
            raise BadConfiguration(
                "it splits by category, which trees in ONNX cannot do: fit with categorical_features=None, so that the "
                "ids of categories are ordered numbers"
            )
        numbers = np.arange(len(table))
        nodes["treeids"] += [tree] * len(table)
        nodes["nodeids"] += numbers.tolist()
        nodes["featureids"] += np.where(is_leaf, 0, table["feature_idx"]).tolist()
        nodes["values"] += np.where(is_leaf, np.float32(0), below(table["num_threshold"])).tolist()
        nodes["modes"] += np.where(is_leaf, "LEAF", "BRANCH_LEQ").tolist()
        nodes["truenodeids"] += np.where(is_leaf, 0, table["left"]).tolist()
        nodes["falsenodeids"] += np.where(is_leaf, 0, table["right"]).tolist()
        nodes["missing_value_tracks_true"] += np.where(is_leaf, 0, table["missing_go_to_left"]).tolist()
        leaves = numbers[is_leaf]
        targets["treeids"] += [tree] * len(leaves)
        targets["nodeids"] += leaves.tolist()
        targets["ids"] += [0] * len(leaves)
        targets["weights"] += table["value"][is_leaf].astype(np.float32).tolist()
    return {f"nodes_{name}": values for name, values in nodes.items()} | {
        f"target_{name}": values for name, values in targets.items()
    }


def below(thresholds: NDArray[np.float64] | np.float64) -> NDArray[np.float32]:
    """Return the largest float32 not above each threshold: a float32 value is `<=` both of them or neither."""
    nearest = thresholds.astype(np.float32)
    return np.where(nearest > thresholds, np.nextafter(nearest, np.float32(-np.inf)), nearest)
