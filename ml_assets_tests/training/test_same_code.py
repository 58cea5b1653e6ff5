"""Code of a job and code of an attempt: an attempt is refused if they differ."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from ml_assets.data.snapshots.split_reader import Snapshot
from ml_assets.model.training.attempt.same_code import loop_version, platform_text, refuse_other_code
from ml_assets_tests.training.lab_package import with_model, with_script
from ml_assets_tests.training.small_jobs import small_job
from resources.job.errors import InputChanged
from resources.job.job import TrainingJob


@pytest.mark.parametrize("job_of", [with_model, with_script])
def test_code_of_an_image_may_lie_in_another_folder(
    lab: Path,
    tmp_path: Path,
    snapshot: Snapshot,
    monkeypatch: pytest.MonkeyPatch,
    job_of: Callable[[Snapshot], TrainingJob],
) -> None:
    job = job_of(snapshot)
    lab.parent.rename(tmp_path / "opt")
    monkeypatch.syspath_prepend(tmp_path / "opt")
    refuse_other_code(job, is_pod=True)
    (tmp_path / "opt" / "lab" / "rates.py").write_text("RATE = 0.5\n")
    with pytest.raises(InputChanged, match=r"build the image .*submitted"):
        refuse_other_code(job, is_pod=True)


def test_another_platform_in_an_image_is_refused(snapshot: Snapshot) -> None:
    """Text that differs, as in a comment, is compared by its meaning."""
    job = dataclasses.replace(
        small_job(snapshot), loop_version=loop_version(""), platform_text=platform_text()
    )
    refuse_other_code(job, is_pod=True)
    refuse_other_code(dataclasses.replace(job, platform_text="0" * 64), is_pod=True)
    other = dataclasses.replace(job, loop_version="1" * 16, platform_text="0" * 64)
    words = (
        r"the platform \(ml_assets\.model\.training\) has version [0-9a-f]{16}, submitted was 1{16}.* "
        "build the image"
    )
    with pytest.raises(InputChanged, match=words):
        refuse_other_code(other, is_pod=True)


def test_other_packages_than_the_record_names_are_refused(snapshot: Snapshot) -> None:
    job = dataclasses.replace(small_job(snapshot), packages={"torch": "1.0", "only-on-windows": "2.0"})
    with pytest.raises(InputChanged, match=r"torch is 2\.\S+, .*1\.0"):
        refuse_other_code(job, is_pod=False)
    with pytest.raises(InputChanged, match=r"python is 3\.\d+, .*2\.7"):
        refuse_other_code(dataclasses.replace(job, packages={"python": "2.7"}), is_pod=False)
