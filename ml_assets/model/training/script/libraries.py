"""Models of LightGBM, XGBoost and scikit-learn as ONNX graphs of the matrix, made when a script hands them in.

onnxmltools and skl2onnx convert. scikit-learn's histogram gradient boosting (`HistGradientBoostingClassifier` of two
classes, `HistGradientBoostingRegressor`), whose trees handle missing values, has a converter here: skl2onnx 1.20
forgets the exponential of a poisson loss, and reads splits by category as thresholds. The graph must give the same
answers as the library. The script's environment provides all packages, imported when needed.
"""

# pyright: reportAttributeAccessIssue=false, reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# (scikit-learn is untyped, onnx is typed in part)
# (none of these packages is typed)

import copy
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, checker, compose, helper, version_converter

from ml_assets.model.training.script.data import Example
from ml_assets.model.training.script.graph import run_graph
from ml_assets.model.training.script.matrix_graph import checked_graph
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


_CONVERTERS = {"lightgbm": "onnxmltools", "xgboost": "onnxmltools", "sklearn": "skl2onnx"}
_BOOSTED = ("lightgbm", "xgboost")
_ROUNDED = (
    "a step before the trees rounds in another way there, and a row near a threshold takes the other branch. Keep "
    "steps that only fill and choose columns (SimpleImputer), and leave out those that compute (StandardScaler, PCA): "
    "trees need no scaling"
)
"""Remedy for a pipeline that ends in trees."""
_IS_CATEGORY = 1
"""Bit of a decision type in LightGBM's model file that marks a category."""


def library_of(model: object) -> str | None:
    """Return `lightgbm`, `xgboost` or `sklearn` if `model` belongs to that library, else None."""
    roots = [base.__module__.partition(".")[0] for base in type(model).__mro__]
    return next(
        (name for name in _CONVERTERS if name in roots), None
    )  # LGBMRegressor is one of sklearn's, too


def library_graph(model: Any, library: str, example: Example) -> bytes:
    """Return the checked graph of a fitted model of `library`.

    Raises `BadConfiguration` if a converter is missing or fails, and if the graph's answers differ from the model's.
    """
    name = type(model).__name__
    _refuse_wrong_kind(model, name, example)
    try:
        convert, ask = _WAYS[library](model, example.width)
        given = np.asarray(ask(example.matrix))
    except MemoryError:
        raise
    except Exception as error:  # libraries raise types of their own
        raise BadConfiguration(
            f"{name} failed on {example.rows_words}: {type(error).__name__}: {error}. Hand in a model fitted on the "
            f"matrix {example.matrix_words}; if it takes no missing values, fill them first, in scikit-learn by "
            "make_pipeline(SimpleImputer(), …)"
        ) from error
    expected = _answers(name, given, example)
    try:
        graph = convert()
    except ImportError as error:
        raise BadConfiguration(
            f"{error.name} is not installed where the script runs, but a {name} is converted to a graph with it: "
            f"add {_CONVERTERS[library]}, onnx and onnxruntime to the packages of its image (resources.image), on "
            "this machine pip install 'ml-assets[trees]'"
        ) from error
    except (BadConfiguration, MemoryError):
        raise
    except Exception as error:  # converters raise any type of error
        raise BadConfiguration(
            f"{_CONVERTERS[library]} cannot convert {name} to an ONNX graph: {type(error).__name__}: {error}. Train "
            "another kind of model, or hand in your own graph"
        ) from error
    checked = checked_graph(graph, example)
    example.require_same(
        expected,
        example.answers(run_graph(checked, example.matrix)),
        f"the ONNX graph that {_CONVERTERS[library]} made from {name}",
        f"the {name} itself",
        _ROUNDED
        if _is_boosted_pipeline(model)
        else "the converter does not know an option of the model. Leave unusual options out (boosting=rf and "
        "zero_as_missing of LightGBM, missing values in scikit-learn's forests), or hand in your own graph",
    )
    return checked


def _answers(name: str, given: NDArray[Any], example: Example) -> NDArray[np.float64]:
    """Return the answers of a library as a graph gives them: of the probabilities of two classes, the second."""
    if not example.classes and given.ndim == 2 and given.shape[1] == 2:
        given = given[:, 1]
    if example.classes and given.shape != (len(example.numeric), example.classes):
        raise BadConfiguration(
            f"{name} answers {given.shape} for {len(example.numeric)} rows, and the label has {example.classes} "
            f"classes: {example.classes_words}. Train it with the labels of Training.matrix, which are these "
            f"numbers (LightGBM: objective multiclass with num_class {example.classes}; XGBoost: multi:softprob)"
        )
    return example.answers(given)


def _refuse_wrong_kind(model: Any, name: str, example: Example) -> None:
    """Refuse a classifier for a regression, a classifier of other classes, and one without probabilities."""
    if not hasattr(model, "predict_proba"):
        if hasattr(model, "classes_"):
            raise BadConfiguration(
                f"{name} answers labels, not probabilities: use a classifier with predict_proba, or wrap it in "
                "CalibratedClassifierCV"
            )
        return
    if not (example.is_probability or example.classes):
        raise BadConfiguration(
            f"{name} is a classifier, but the objective is {example.objective}: fit a regressor"
        )
    classes = getattr(model, "classes_", None)
    if classes is not None and example.classes and list(classes) != list(range(example.classes)):
        raise BadConfiguration(
            f"{name} has the classes {', '.join(map(str, classes))}, and the label has {example.classes_words}: fit it "
            "on the labels of Training.matrix, which are these numbers"
        )
    if classes is not None and not example.classes and len(classes) != 2:
        raise BadConfiguration(
            f"{name} has {len(classes)} classes: a pipeline's label has two, and both must be in the rows that it is "
            "fitted on"
        )


_Ways = tuple[Callable[[], Any], Callable[[NDArray[np.float32]], Any]]
"""Two functions, of a model and its number of columns. The first makes a graph of the model, the second asks the
model's own library for answers."""


def _of_lightgbm(model: Any, width: int) -> _Ways:
    import lightgbm

    booster = model if isinstance(model, lightgbm.Booster) else model.booster_

    def convert() -> Any:
        from onnxmltools import convert_lightgbm

        exact = lightgbm.Booster(model_str=_with_float32_thresholds(booster.model_to_string()))
        return convert_lightgbm(exact, initial_types=_float_matrix(width))

    return convert, lambda matrix: booster.predict(matrix, num_threads=1)


def _with_float32_thresholds(text: str) -> str:
    """Return LightGBM's model file with thresholds at which a float32 branches exactly as at the original float64.

    ONNX has float32 thresholds. The nearest float32 may lie above the float64, and a value between them takes the other
    branch. LightGBM's threshold between two adjacent floats always has such a value.
    """
    # The sizes of trees in bytes are no longer right. Without them, LightGBM computes the sizes itself.
    lines = [line for line in text.split("\n") if not line.startswith("tree_sizes=")]
    for at, line in enumerate(lines):
        name, _, values = line.partition("=")
        if name == "threshold":
            kinds = lines[at + 1].removeprefix("decision_type=").split()
            exact = (
                value if int(kind) & _IS_CATEGORY else repr(float(below(np.float64(value))))
                for value, kind in zip(values.split(), kinds, strict=True)
            )
            lines[at] = f"threshold={' '.join(exact)}"
    return "\n".join(lines)


def _of_xgboost(model: Any, width: int) -> _Ways:
    import xgboost

    # Columns go by position in the graph, and the converter accepts no other names.
    nameless = copy.deepcopy(model)
    booster = nameless if isinstance(nameless, xgboost.Booster) else nameless.get_booster()
    booster.feature_names = None

    def convert() -> Any:
        from onnxmltools import convert_xgboost

        return convert_xgboost(nameless, initial_types=_float_matrix(width))

    if nameless is booster:
        kinds = booster.feature_types
        return convert, lambda matrix: booster.predict(
            xgboost.DMatrix(matrix, feature_types=kinds, enable_categorical=True)
        )
    return convert, _asking(nameless)


def _of_sklearn(model: Any, width: int) -> _Ways:
    def convert() -> Any:
        if type(model).__name__.startswith("HistGradientBoosting"):
            return trees_to_onnx(model)  # of a poisson loss skl2onnx forgets the exponential
        if _is_boosted_pipeline(model):
            first = model[:-1]
            row = first.transform(np.zeros((1, width), np.float32))
            return _joined(_sklearn_graph(first, width), model[-1], row.shape[1])
        return _sklearn_graph(model, width)

    return convert, _asking(model)


def _sklearn_graph(model: Any, width: int) -> Any:
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType

    matrix: Any = ("matrix", FloatTensorType([None, width]))
    return to_onnx(model, initial_types=[matrix])


def _is_boosted_pipeline(model: Any) -> bool:
    """Return True for a scikit-learn pipeline whose last step is an estimator of LightGBM or XGBoost."""
    steps = getattr(model, "steps", ())
    return len(steps) > 1 and library_of(steps[-1][1]) in _BOOSTED


def _joined(first: Any, last: Any, width: int) -> Any:
    """Return the graph `first` followed by that of `last`, an estimator of LightGBM or XGBoost of `width` columns.

    skl2onnx knows no estimators of these libraries. Each graph is made by the library's own converter.
    """
    convert, _ = _WAYS[library_of(last) or ""](last, width)
    before, after = first, convert()
    versions = [
        max((one.version for one in graph.opset_import if not one.domain), default=0)
        for graph in (before, after)
    ]
    if 0 < versions[1] < versions[0]:  # 0: trees alone
        after = version_converter.convert_version(after, versions[0])
    before.ir_version = after.ir_version = max(before.ir_version, after.ir_version)
    before, after = compose.add_prefix(before, "before_"), compose.add_prefix(after, "after_")
    return compose.merge_models(
        before, after, io_map=[(before.graph.output[0].name, after.graph.input[0].name)]
    )


def _asking(model: Any) -> Callable[[NDArray[np.float32]], Any]:
    if hasattr(model, "predict_proba"):
        return model.predict_proba
    return model.predict


def _float_matrix(width: int) -> list[tuple[str, Any]]:
    from onnxmltools.convert.common.data_types import FloatTensorType

    return [("matrix", FloatTensorType([None, width]))]


_WAYS: dict[str, Callable[[Any, int], _Ways]] = {
    "lightgbm": _of_lightgbm,
    "xgboost": _of_xgboost,
    "sklearn": _of_sklearn,
}
