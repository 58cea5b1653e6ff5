"""A key of `defs.yaml` under an earlier name is refused in one line that names the key of today."""

from pathlib import Path

import pytest

from ml_assets.components.declarations import DeclarationRefused
from ml_assets.components.documents import faults_in
from ml_assets.renamed_keys import RENAMED_KEYS
from ml_assets_tests.components.defs_sandbox import DECLARED, load

# Section of `RENAMED_KEYS` → text of the store chain before which an old key is written, and the section's path.
PLACES = {
    "Contract": ("event_time: week", "contract"),
    "InputSection": ("lookback: 4", "inputs.0"),
    "KnowledgeRule": ("column: closed_at", "inputs.0.known_at.0"),
    "ModelInputsSection": ("label: units", "features"),
    "ModelSection": ("hyperparameters: {hidden", "model"),
    "EvaluationSpec": ("objective: regression", "evaluation"),
    "Gate": ("metric: rmse, better_than: baseline", "evaluation.gates.0"),
    "ScheduleSection": ("cron:", "schedule"),
    "SourceSection": ("function: ml_assets.defs.store_demand.source", "source"),
    "TableSpecSection": ("name: sales_features", ""),
    "TrainingPipelineSpec": ("seed: 11", ""),
    "training": ("global_batch: 64", "training"),
}

_DECLARED = f"{DECLARED}  schedule: {{cron: 0 3 * * *, latest: ml_assets.defs.store_demand.source.latest}}\n"

EACH = pytest.mark.parametrize(
    ("section", "old", "new"),
    [(section, old, new) for section, keys in RENAMED_KEYS.items() for old, new in keys.items()],
)


@EACH
def test_an_old_key_is_refused_with_the_key_of_today(section: str, old: str, new: str) -> None:
    text, number = _with_key(section, old)
    with pytest.raises(DeclarationRefused) as refused:
        load(text)
    said = next(line for line in str(refused.value).splitlines() if f".{old}:" in line)
    path = ".".join(filter(None, ("attributes", PLACES[section][1], old)))
    assert said.endswith(f"demand/defs.yaml:{number} {path}: `{old}` is called `{new}` now")


@EACH
def test_the_section_knows_the_key_of_today(section: str, old: str, new: str, tmp_path: Path) -> None:
    (tmp_path / "defs.yaml").write_text(_with_key(section, new)[0])
    assert not [line for line in faults_in(tmp_path) if f"key '{new}'" in line]


def test_an_old_word_is_refused_with_the_word_of_today() -> None:
    with pytest.raises(DeclarationRefused) as refused:
        load(DECLARED.replace("lookback: 4", "lookback: whole"))
    assert str(refused.value).endswith("attributes.inputs.0.lookback: `whole` is called `all` now")


OF_TODAY = "`{}` is called `{}` now"
# What is right → what is written, path of the key, and what is said of it: at every level, one within the other.
FAULTS = [
    ("group_name: store_demand", "group: store_demand", "group", OF_TODAY.format("group", "group_name")),
    ("latest: ml_assets", "newest: ml_assets", "source.newest", OF_TODAY.format("newest", "latest")),
    ("primary_key: [week", "key: [week", "contract.key", OF_TODAY.format("key", "primary_key")),
    ("dtype: bool", "dtype: bol", "contract.columns.3.dtype", "'bol' is not a type; did you mean 'bool'?"),
    ("lookback: 4", "lookback: whole", "inputs.0.lookback", OF_TODAY.format("whole", "all")),
    ("known_at:\n", "known:\n", "inputs.0.known", OF_TODAY.format("known", "known_at")),
    ("column: closed_at,", "at: closed_at,", "inputs.0.known.0.at", OF_TODAY.format("at", "column")),
    ("nullable: true", "nulable: true", "contract.columns.6.nulable",
     "unknown key 'nulable': did you mean 'nullable'?"),
    ("label: units", "labl: units", "features.labl", "unknown key 'labl': did you mean 'label'?"),
    ("holdout: 8", "holdout: eight", "window.holdout", "Input should be a valid integer"),
    ("training:\n", "trainings:\n", "trainings", "unknown key 'trainings': did you mean 'training'?"),
    ("patience: 5", "patience: five", "trainings.patience", "Input should be a valid integer"),
    ("workers: 2\n", "workers: 2\n    parallel: {tensors: 1}\n", "trainings.parallel.tensors",
     "unknown key 'tensors': did you mean 'tensor'?"),
    ("log_every_steps: 10", "metric_steps: 10", "trainings.metric_steps",
     OF_TODAY.format("metric_steps", "log_every_steps")),
    ("seed: 11", "colour: red", "colour", "unknown key 'colour': known keys: "),
    ("bootstrap_unit:", "block:", "evaluation.block", OF_TODAY.format("block", "bootstrap_unit")),
    ("margin: -5.0", "by: -5.0", "evaluation.gates.1.by", OF_TODAY.format("by", "margin")),
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


def _with_key(section: str, key: str) -> tuple[str, int]:
    """Return the store chain with `key` in a section, and the key's line."""
    text = PLACES[section][0]
    before, _, after = _DECLARED.partition(text)
    *_, last = before.splitlines()
    between = f"\n{last}" if last.isspace() else ", "
    return f"{before}{key}: 1{between}{text}{after}", len(before.splitlines())
