"""All wrong keys and values of a `defs.yaml` are named in one run, each at its line."""

import pytest

from ml_assets.components.declarations import DeclarationRefused
from ml_assets_tests.components.defs_sandbox import DECLARED, load

# What is right → what is written, path of the key, and what is said of it: at every level, one within the other.
FAULTS = [
    ("group_name: store_demand", "group: store_demand", "group", "unknown key 'group': did you mean 'group_name'?"),
    ("latest: ml_assets", "lates: ml_assets", "source.lates", "unknown key 'lates': did you mean 'latest'?"),
    ("primary_key: [week", "primary: [week", "contract.primary",
     "unknown key 'primary': did you mean 'primary_key'?"),
    ("dtype: bool", "dtype: bol", "contract.columns.3.dtype", "'bol' is not a type; did you mean 'bool'?"),
    ("known_at:\n", "known:\n", "inputs.0.known", "unknown key 'known': did you mean 'known_at'?"),
    ("column: closed_at,", "colum: closed_at,", "inputs.0.known.0.colum",
     "unknown key 'colum': did you mean 'column'?"),
    ("nullable: true", "nulable: true", "contract.columns.6.nulable",
     "unknown key 'nulable': did you mean 'nullable'?"),
    ("label: units", "labl: units", "features.labl", "unknown key 'labl': did you mean 'label'?"),
    ("holdout: 8", "holdout: eight", "window.holdout", "Input should be a valid integer"),
    ("training:\n", "trainings:\n", "trainings", "unknown key 'trainings': did you mean 'training'?"),
    ("patience: 5", "patience: five", "trainings.patience", "Input should be a valid integer"),
    ("workers: 2\n", "workers: 2\n    parallel: {tensors: 1}\n", "trainings.parallel.tensors",
     "unknown key 'tensors': did you mean 'tensor'?"),
    ("log_every_steps: 10", "log_every: 10", "trainings.log_every",
     "unknown key 'log_every': did you mean 'log_every_steps'?"),
    ("seed: 11", "colour: red", "colour", "unknown key 'colour': known keys: "),
    ("bootstrap_unit:", "bootstrap:", "evaluation.bootstrap",
     "unknown key 'bootstrap': did you mean 'bootstrap_unit'?"),
    ("margin: -5.0", "margn: -5.0", "evaluation.gates.1.margn", "unknown key 'margn': did you mean 'margin'?"),
]  # fmt: skip


def test_all_wrong_keys_and_values_of_a_file_are_named_in_one_run() -> None:
    text = DECLARED
    for right, wrong, _, _ in FAULTS:
        assert right in text
        text = text.replace(right, wrong, 1)
    with pytest.raises(DeclarationRefused) as refused:
        load(text)
    lines = str(refused.value).splitlines()
    assert len(lines) == len(FAULTS)
    for line, (_, wrong, path, said) in zip(lines, FAULTS, strict=True):
        at = text[: text.index(wrong.rstrip()) + len(wrong.rstrip())].count("\n") + 1
        assert line.partition("demand/defs.yaml:")[2].startswith(f"{at} attributes.{path}: {said}")
