"""Models of LightGBM, XGBoost and scikit-learn are handed in as they are, and every door answers as their library does.

Missing values, categories that nobody has seen and neighbouring floats included.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightgbm
import mlflow.pyfunc
import numpy as np
import onnx
import pandas as pd
import polars as pl
import pytest
import xgboost
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ml_assets.data.snapshots.split_reader import InputSpec
from ml_assets.model.release.bundle import build_bundle
from ml_assets.model.release.bundle_store import BundleStore
from ml_assets.model.release.onnx_graph import MatrixGraph
from ml_assets.model.release.runtime import ServingModel
from ml_assets.model.training.script.blend import Blend
from ml_assets.model.training.script.data import Example
from ml_assets.model.training.script.graph import run_graph
from ml_assets.model.training.script.script_model import check_model
from ml_assets_tests.release.conftest import contents_of
from resources.artifacts import FolderArtifacts
from resources.job.errors import BadConfiguration

NUMERIC, CATEGORY = ["hour", "delay", "noise"], ["carrier"]
CARRIERS = [f"carrier {i}" for i in range(9)]
ONE_THREAD = {"num_threads": 1, "verbose": -1, "num_leaves": 15}


def raw_rows(count: int, seed: int) -> pl.DataFrame:
    """Rows with nulls; a label that a tree can learn, of numbers and carrier."""
    random = np.random.default_rng(seed)
    hour, delay = random.integers(0, 24, count), random.normal(0, 30, count)
    carrier = random.integers(0, len(CARRIERS), count)
    holes = random.random((3, count)) < 0.15
    return pl.DataFrame(
        {
            "hour": [None if hole else int(one) for one, hole in zip(hour, holes[0], strict=True)],
            "delay": [None if hole else float(one) for one, hole in zip(delay, holes[1], strict=True)],
            "noise": random.normal(size=count).astype(np.float32),
            "carrier": [None if hole else CARRIERS[one] for one, hole in zip(carrier, holes[2], strict=True)],
            "label": 0.2 * hour + 0.05 * delay + (carrier % 3) + random.normal(0, 0.2, count),
        }
    )


ROWS = raw_rows(1500, 5)
CONTENTS = contents_of(ROWS, NUMERIC, CATEGORY, "regression")


def matrix_of(frame: pl.DataFrame) -> NDArray[np.float32]:
    numeric, category = CONTENTS.fitted.encode(frame)
    return np.hstack([numeric, category.astype(np.float32)])


def example_of(objective: str) -> Example:
    numeric, category = CONTENTS.fitted.encode(ROWS.head(300))
    numeric = np.vstack([numeric, np.full((1, len(NUMERIC)), np.nan, np.float32)])
    return Example(
        inputs=InputSpec(
            numeric=tuple(NUMERIC),
            fill=(0.0,) * len(NUMERIC),
            categorical=tuple(CATEGORY),
            cardinalities=(len(CARRIERS) + 1,),
        ),
        objective=objective,
        split="validation",
        numeric=numeric,
        category=np.vstack([category, [[0]]]).astype(np.int64),
        blobs=None,
    )


def of_classes() -> Example:
    """The same rows, whose label is one of three words."""
    one = example_of("multiclass")
    return replace(one, inputs=replace(one.inputs, classes=("high", "low", "mid")))


X = matrix_of(ROWS)
VALUE = ROWS["label"].to_numpy()
FLAG = (np.median(VALUE) < VALUE).astype(np.float64)
COUNT = np.exp(VALUE / 4)
MULTICLASS = (CONTENTS.fitted.encode(ROWS)[1][:, 0] % 3).astype(np.float64)
KINDS = ["q", "q", "q", "c"]

Fit = Callable[[], tuple[Any, Callable[[NDArray[np.float32]], Any]]]
"""A fitted model, and how its library is asked."""


def by_lightgbm(objective: str, label: NDArray[Any], categories: bool = False, **options: Any) -> Fit:
    def fit() -> Any:
        data = lightgbm.Dataset(X, label, categorical_feature=[3] if categories else [])
        booster = lightgbm.train(ONE_THREAD | {"objective": objective} | options, data, 30)
        return booster, booster.predict

    return fit


def by_xgboost(objective: str, label: NDArray[Any], categories: bool = False) -> Fit:
    def fit() -> Any:
        how: dict[str, Any] = {"feature_types": KINDS, "enable_categorical": True} if categories else {}
        data = xgboost.DMatrix(X, label, feature_names=[*NUMERIC, *CATEGORY], **how)
        booster = xgboost.train({"objective": objective, "nthread": 1, "max_depth": 4}, data, 30)
        return booster, lambda x: booster.predict(
            xgboost.DMatrix(x, feature_names=[*NUMERIC, *CATEGORY], **how)
        )

    return fit


def estimator(model: Any, label: NDArray[Any], **options: Any) -> Fit:
    def fit() -> Any:
        model.fit(X, label, **options)
        if hasattr(model, "predict_proba"):
            return model, lambda x: model.predict_proba(x)[:, 1]
        return model, model.predict

    return fit


def stopped_early() -> Any:
    data, rest = lightgbm.Dataset(X[:1000], VALUE[:1000]), lightgbm.Dataset(X[1000:], VALUE[1000:])
    callbacks = [lightgbm.early_stopping(2, verbose=False)]
    booster = lightgbm.train(
        ONE_THREAD | {"objective": "regression", "learning_rate": 0.5}, data, 90, [rest], callbacks=callbacks
    )
    assert booster.best_iteration < 90
    return booster, booster.predict


TRAINED: dict[str, tuple[str, Fit]] = {
    "lightgbm, regression": ("regression", by_lightgbm("regression", VALUE)),
    "lightgbm, stopped early": ("regression", stopped_early),
    "lightgbm, splits by category": ("regression", by_lightgbm("regression", VALUE, categories=True)),
    "lightgbm, poisson, dart": ("regression", by_lightgbm("poisson", COUNT, boosting="dart")),
    "lightgbm, binary": ("binary", by_lightgbm("binary", FLAG)),
    "LGBMClassifier": ("binary", estimator(lightgbm.LGBMClassifier(n_estimators=20, **ONE_THREAD), FLAG)),
    "LGBMRegressor": ("regression", estimator(lightgbm.LGBMRegressor(n_estimators=20, **ONE_THREAD), VALUE)),
    "xgboost, regression": ("regression", by_xgboost("reg:squarederror", VALUE)),
    "xgboost, splits by category": ("regression", by_xgboost("reg:squarederror", VALUE, categories=True)),
    "xgboost, gamma": ("regression", by_xgboost("reg:gamma", COUNT)),
    "xgboost, binary": ("binary", by_xgboost("binary:logistic", FLAG)),
    "XGBClassifier": ("binary", estimator(xgboost.XGBClassifier(n_estimators=20, n_jobs=1), FLAG)),
    "XGBRegressor, stopped early": (
        "regression",
        estimator(
            xgboost.XGBRegressor(n_estimators=90, n_jobs=1, early_stopping_rounds=2, learning_rate=0.9),
            VALUE,
            eval_set=[(X[::3], COUNT[::3])],
            verbose=False,
        ),
    ),
    "HistGradientBoostingRegressor": ("regression", estimator(HistGradientBoostingRegressor(max_iter=20), VALUE)),
    "HistGradientBoostingRegressor, poisson": (
        "regression", estimator(HistGradientBoostingRegressor(max_iter=20, loss="poisson"), COUNT),
    ),
    "HistGradientBoostingClassifier": ("binary", estimator(HistGradientBoostingClassifier(max_iter=20), FLAG)),
    "logistic regression": (
        "binary", estimator(make_pipeline(SimpleImputer(), StandardScaler(), LogisticRegression()), FLAG),
    ),
    "gradient boosting": (
        "binary", estimator(make_pipeline(SimpleImputer(), GradientBoostingClassifier(n_estimators=20)), FLAG),
    ),
    "pipeline, LGBMClassifier": (
        "binary",
        estimator(make_pipeline(SimpleImputer(), lightgbm.LGBMClassifier(n_estimators=20, **ONE_THREAD)), FLAG),
    ),
    "pipeline, XGBRegressor": (
        "regression",
        estimator(make_pipeline(SimpleImputer(), xgboost.XGBRegressor(n_estimators=20, n_jobs=1)), VALUE),
    ),
    "random forest": (
        "regression", estimator(make_pipeline(SimpleImputer(), RandomForestRegressor(10, random_state=0)), VALUE),
    ),
}  # fmt: skip

RAW = st.lists(
    st.fixed_dictionaries(
        {
            "hour": st.none() | st.integers(-5, 40),
            "delay": st.none() | st.floats(-200, 200, width=32),
            "noise": st.none() | st.sampled_from(ROWS["noise"].to_list()) | st.floats(-9, 9, width=32),
            "carrier": st.none() | st.sampled_from([*CARRIERS, "nobody's", ""]),
        }
    ),
    min_size=1,
    max_size=12,
)
SCHEMA = ROWS.drop("label").schema


@pytest.mark.parametrize("name", TRAINED)
def test_a_model_of_a_library_answers_by_every_door_as_there(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The script hands in the model as it is. Every way to serve it gives the predictions of its own library."""
    objective, fit = TRAINED[name]
    model, ask = fit()
    content = check_model(model, example_of(objective)).weights["onnx"].numpy().tobytes()
    contents = replace(CONTENTS, module=MatrixGraph(content), objective=objective, rows=ROWS, metrics={})
    folder = build_bundle(contents, BundleStore(FolderArtifacts(tmp_path_factory.mktemp("trees")))).folder
    served, through_mlflow = ServingModel.load(folder), mlflow.pyfunc.load_model(str(folder))

    @settings(max_examples=25, deadline=None)
    @given(RAW)
    def answers_alike(rows: list[dict[str, Any]]) -> None:
        frame = pl.DataFrame(rows, schema=SCHEMA)
        expected = np.asarray(ask(matrix_of(frame)), dtype=np.float64)
        doors = {
            "a frame": served.predict(frame),
            "one row": [served.predict_row(row) for row in rows],
            "MLflow": through_mlflow.predict(pd.DataFrame(json.loads(json.dumps(rows)), dtype=object)),
        }
        for door, answered in doors.items():
            np.testing.assert_allclose(answered, expected, rtol=2e-5, atol=1e-5, err_msg=door)

    answers_alike()
    fresh = raw_rows(2000, 6)
    np.testing.assert_allclose(served.predict(fresh), ask(matrix_of(fresh)), rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["lightgbm, regression", "XGBClassifier", "pipeline, LGBMClassifier", "logistic regression"]
)
def test_a_model_handed_in_again_has_the_same_bits(name: str) -> None:
    """Converters give each graph a random name."""
    objective, fit = TRAINED[name]
    model, _ = fit()
    first, second = (check_model(model, example_of(objective)).weights["onnx"].numpy() for _ in range(2))
    assert first.tobytes() == second.tobytes()


def test_notes_of_an_exporter_do_not_change_the_bits() -> None:
    """Names of graphs, documentation and stack traces, also those inside a branch and of a blend's member."""

    def graph_of(note: str) -> onnx.ModelProto:
        number = onnx.helper.make_tensor_value_info
        branch = onnx.helper.make_graph(
            [onnx.helper.make_node("ReduceSum", ["matrix"], ["sum"], keepdims=0, axes=[1], doc_string=note)],
            f"branch {note}",
            [],
            [number("sum", onnx.TensorProto.FLOAT, ["rows"])],
        )
        always = onnx.helper.make_tensor("always", onnx.TensorProto.BOOL, [], [True])
        always.doc_string = note
        graph = onnx.helper.make_graph(
            [onnx.helper.make_node("If", ["always"], ["value"], then_branch=branch, else_branch=branch)],
            note,
            [number("matrix", onnx.TensorProto.FLOAT, [None, X.shape[1]])],
            [number("value", onnx.TensorProto.FLOAT, ["rows"])],
            [always],
            doc_string=note,
        )
        model = onnx.helper.make_model(
            graph, opset_imports=[onnx.helper.make_opsetid("", 12)], ir_version=10, doc_string=note
        )
        for noted in (model, graph.node[0]):
            noted.metadata_props.add(key="stack_trace", value=f"File /home/{note}/train.py")
        return model

    example = example_of("regression")
    full = replace(example, numeric=np.nan_to_num(example.numeric))
    for hand_in in (graph_of, lambda note: Blend([graph_of(note)], [1.0])):
        ada, bob = (check_model(hand_in(note), full).weights["onnx"].numpy() for note in ("ada", "bob"))
        assert ada.tobytes() == bob.tobytes()


OF_CLASSES: dict[str, Fit] = {
    "lightgbm": by_lightgbm("multiclass", MULTICLASS, num_class=3),
    "LGBMClassifier": estimator(lightgbm.LGBMClassifier(n_estimators=20, **ONE_THREAD), MULTICLASS),
    "XGBClassifier": estimator(xgboost.XGBClassifier(n_estimators=20, n_jobs=1), MULTICLASS),
    "logistic regression": estimator(
        make_pipeline(SimpleImputer(), StandardScaler(), LogisticRegression()), MULTICLASS
    ),
}


@pytest.mark.parametrize("name", OF_CLASSES)
def test_a_model_of_classes_answers_a_probability_for_each_as_its_library(name: str, tmp_path: Path) -> None:
    model, ask = OF_CLASSES[name]()
    ask = getattr(model, "predict_proba", ask)
    content = check_model(model, of_classes()).weights["onnx"].numpy().tobytes()
    fitted = replace(CONTENTS.fitted, classes=of_classes().inputs.classes)
    contents = replace(
        CONTENTS, module=MatrixGraph(content), objective="multiclass", rows=ROWS, fitted=fitted
    )
    served = ServingModel.load(build_bundle(contents, BundleStore(FolderArtifacts(tmp_path))).folder)
    fresh = raw_rows(2000, 6)
    np.testing.assert_allclose(served.predict(fresh), ask(matrix_of(fresh)), rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("fit", "said"),
    [
        (
            by_lightgbm("regression", VALUE),
            "Booster answers .* and the label has 3 classes: 0 'high', 1 'low', 2 'mid'",
        ),
        (
            by_lightgbm("multiclassova", MULTICLASS, num_class=3),
            "graph that onnxmltools made from Booster answers .*, .*, .* the Booster itself",
        ),
        (
            estimator(lightgbm.LGBMClassifier(n_estimators=2, **ONE_THREAD), MULTICLASS + 1),
            "LGBMClassifier has the classes 1.0, 2.0, 3.0, and the label has 0 'high'",
        ),
        (
            estimator(HistGradientBoostingClassifier(max_iter=2), MULTICLASS),
            "it has 3 classes, for which scikit-learn's histogram gradient boosting cannot become a graph",
        ),
    ],
)
def test_a_model_of_other_classes_is_refused(fit: Fit, said: str) -> None:
    model, _ = fit()
    with pytest.raises(BadConfiguration, match=said):
        check_model(model, of_classes())


@settings(max_examples=20, deadline=None)
@given(st.floats(-1e6, 1e6, width=32))
def test_thresholds_of_lightgbm_between_neighbouring_floats_hold(value: float) -> None:
    """LightGBM stores a threshold between two floats as a float64. The nearest float32 is the upper of the two."""
    low = np.float32(value)
    x = np.zeros((100, 4), np.float32)
    x[:, 0] = np.repeat([low, np.nextafter(low, np.float32(np.inf))], 50)
    label = np.repeat([0.0, 1.0], 50)
    options = ONE_THREAD | {"objective": "regression", "min_data_in_bin": 1, "min_data_in_leaf": 5}
    booster = lightgbm.train(options, lightgbm.Dataset(x, label), 2)
    content = check_model(booster, example_of("regression")).weights["onnx"].numpy().tobytes()
    np.testing.assert_allclose(run_graph(content, x).reshape(-1), booster.predict(x), atol=1e-6)


@pytest.mark.parametrize(
    ("objective", "fit", "said"),
    [
        ("regression", by_lightgbm("regression", VALUE, boosting="rf", bagging_fraction=0.6, bagging_freq=1),
         "graph that onnxmltools made from Booster answers .* the Booster itself .*Leave unusual options out"),
        ("regression", by_lightgbm("cross_entropy", FLAG), "onnxmltools cannot convert Booster to an ONNX graph"),
        ("binary", by_xgboost("binary:logitraw", FLAG), "made from Booster answers .* the Booster itself"),
        ("binary", by_lightgbm("regression", VALUE), "must answer the probability of the label 1"),
        ("regression", estimator(lightgbm.LGBMClassifier(n_estimators=2, **ONE_THREAD), FLAG),
         "LGBMClassifier is a classifier, but the objective is regression: fit a regressor"),
        ("binary", estimator(make_pipeline(SimpleImputer(), RidgeClassifier()), FLAG),
         "Pipeline answers labels, not probabilities: use a classifier with predict_proba"),
        ("regression",
         estimator(make_pipeline(StandardScaler(), xgboost.XGBRegressor(n_estimators=20, n_jobs=1)), VALUE),
         r"leave out those that compute \(StandardScaler, PCA\): trees need no scaling"),
        ("binary", estimator(RandomForestClassifier(2), MULTICLASS), "has 3 classes"),
        ("regression", estimator(RandomForestRegressor(5), VALUE), "missing values in scikit-learn's forests"),
        ("regression", estimator(HistGradientBoostingRegressor(max_iter=2, categorical_features=[3]), VALUE),
         "fit with categorical_features=None"),
    ],
)  # fmt: skip
def test_a_model_that_does_not_become_the_same_graph_is_refused(objective: str, fit: Fit, said: str) -> None:
    model, _ = fit()
    with pytest.raises(BadConfiguration, match=said):
        check_model(model, example_of(objective))


def test_a_model_that_cannot_be_asked_is_refused_with_what_helps() -> None:
    for model in (HistGradientBoostingRegressor(), Ridge().fit(np.nan_to_num(X), VALUE)):
        with pytest.raises(BadConfiguration, match=r"(?s)failed .*first 300.*make_pipeline\(SimpleImp"):
            check_model(model, example_of("regression"))
    narrow = lightgbm.train(ONE_THREAD, lightgbm.Dataset(X[:, :3], VALUE), 2)
    with pytest.raises(BadConfiguration, match="fitted on the matrix"):
        check_model(narrow, example_of("regression"))


def test_a_converter_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = by_lightgbm("regression", VALUE)()
    monkeypatch.setitem(sys.modules, "onnxmltools", None)
    with pytest.raises(BadConfiguration, match=r"onnxmltools is not installed.*ml-assets\[trees\]"):
        check_model(model, example_of("regression"))
