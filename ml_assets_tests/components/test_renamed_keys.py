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


def _with_key(section: str, key: str) -> tuple[str, int]:
    """Return the store chain with `key` in a section, and the key's line."""
    text = PLACES[section][0]
    before, _, after = _DECLARED.partition(text)
    *_, last = before.splitlines()
    between = f"\n{last}" if last.isspace() else ", "
    return f"{before}{key}: 1{between}{text}{after}", len(before.splitlines())
