"""MLflow's files in a bundle: MLmodel with a signature, an input example, and the environment to serve it in.

`mlflow models serve -m models:/NAME/VERSION` works with these in a fresh environment. The files are written as text,
because importing mlflow takes seconds. Not here: MLflow's call of the bundle (`pyfunc`), predictions (`runtime`).
"""

import base64
import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, packages_distributions
from pathlib import Path
from typing import Any

import polars as pl

from ml_assets.data.features import categories
from ml_assets.model.release.runtime import InputColumn
from resources.environment import version_of

MLMODEL = "MLmodel"
_SERVING = ("mlflow", "numpy", "onnx", "onnxruntime", "pandas", "polars")
"""Packages that serving a bundle needs."""
_BUILDING = ("pip", "setuptools", "wheel")
_EXAMPLE, _SERVED_EXAMPLE = "input_example.json", "serving_input_example.json"
MLFLOW_FILES = (
    MLMODEL, "conda.yaml", "python_env.yaml", "requirements.txt", _EXAMPLE, _SERVED_EXAMPLE, "pyfunc.py", "runtime.py",
    "categories.py",
)  # fmt: skip
"""Files that `write_mlflow_files` writes."""
_EXAMPLE_ROWS = 2


def write_mlflow_files(
    folder: Path,
    inputs: Sequence[InputColumn],
    columns: Sequence[str],
    golden: pl.DataFrame,
    packages: Iterable[str],
) -> None:
    """Write `MLFLOW_FILES` into `folder`.

    A prediction has `columns`, such as one for each class, or is one number if there are none. The first rows of
    `golden` become the input example. `packages` are top-level names of packages that this bundle imports in
    addition to those of every bundle. The requirements pin the versions that are installed here.
    """
    import yaml

    here = Path(__file__).parent
    for source in (here / "pyfunc.py", here / "runtime.py", Path(categories.__file__)):
        (folder / source.name).write_bytes(source.read_bytes())
    requirements = _requirements(packages)
    python = platform.python_version()
    documents: dict[str, Any] = {
        MLMODEL: {
            "flavors": {
                "python_function": {
                    "loader_module": "mlflow.pyfunc.model",
                    "model_code_path": "pyfunc.py",
                    "artifacts": {"bundle": {"path": ".", "uri": "."}},
                    "env": {"conda": "conda.yaml", "virtualenv": "python_env.yaml"},
                    "python_version": python,
                },
            },
            "metadata": {"inputs": {column.name: column.dtype for column in inputs}},
            "mlflow_version": version_of("mlflow"),
            "saved_input_example_info": {
                "artifact_path": _EXAMPLE,
                "pandas_orient": "split",
                "serving_input_path": _SERVED_EXAMPLE,
                "type": "dataframe",
            },
            "signature": {
                "inputs": json.dumps([_described(column) for column in inputs]),
                "outputs": json.dumps(
                    [
                        {"type": "double", "name": name, "required": True}
                        for name in columns or ("prediction",)
                    ]
                ),
                "params": None,
            },
        },
        "python_env.yaml": {
            "python": python,
            "build_dependencies": list(_BUILDING),
            "dependencies": ["-r requirements.txt"],
        },
        "conda.yaml": {
            "name": "mlflow-env",
            "channels": ["conda-forge"],
            "dependencies": [f"python={python}", "pip", {"pip": requirements}],
        },
    }
    for name, document in documents.items():
        (folder / name).write_text(yaml.safe_dump(document, sort_keys=True))
    (folder / "requirements.txt").write_text("".join(f"{line}\n" for line in requirements))
    example = _split(golden.head(_EXAMPLE_ROWS).select(column.name for column in inputs))
    (folder / _EXAMPLE).write_text(json.dumps(example, indent=1))
    (folder / _SERVED_EXAMPLE).write_text(json.dumps({"dataframe_split": example}, indent=1))


def _described(column: InputColumn) -> dict[str, Any]:
    """Return the column for MLflow's schema.

    The type is `any`, except for blobs. MLflow would refuse whole numbers for a double and pandas' categories for a
    string, and the runtime checks values itself. No column is required: a missing value is legal, and the runtime names
    a missing column.
    """
    kind = "binary" if column.kind == "blob" else "any"
    return {"type": kind, "name": column.name, "required": False}


def _split(rows: pl.DataFrame) -> dict[str, Any]:
    """Return rows in the form of pandas' `orient="split"`: bytes as base64, times as ISO 8601, NaN as null."""
    return {"columns": rows.columns, "data": [[_plain(value) for value in row] for row in rows.iter_rows()]}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, date):  # a datetime is a date, too
        return value.isoformat()
    if isinstance(value, float) and value != value:
        return None
    return value


def _requirements(packages: Iterable[str]) -> list[str]:
    more = set(packages) - set(_SERVING)
    brought: Mapping[str, list[str]] = packages_distributions() if more else {}
    names = {brought[package][0] for package in more if package in brought} | set(_SERVING)
    # Without a local part: a package index has no `2.11.0+cpu`.
    return [f"{name}{_pin(name)}" for name in sorted(names)]


def _pin(package: str) -> str:
    """Return the installed version as a pin; nothing for pandas where only those who load the model need it."""
    try:
        return f"=={version_of(package).partition('+')[0]}"
    except PackageNotFoundError:
        return ""
