"""Random sources: each row is on main, in quarantine or in a named rejection, exactly once and unchanged."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings

from ml_assets_tests.sources.random_sources import KINDS, Case, cases, play, write_here

_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Thousands of fsyncs cost nothing there."""
SOURCES = int(os.environ.get("SOURCES", "50"))
"""Cases of all kinds of sources. `.ci/run` asks for 300, `.ci/nightly` for 10,000."""


def _play(case: Case) -> None:
    folder = Path(tempfile.mkdtemp(dir=_MEMORY))
    try:
        play(case, folder, write_here)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.timeout(600 + 40 * SOURCES)
@pytest.mark.parametrize("kind", KINDS)
def test_each_row_of_a_source_is_somewhere_once(kind: str) -> None:
    count = -(-SOURCES // len(KINDS))

    # A case is small as it is.
    @settings(max_examples=count, deadline=None, database=None, phases=[Phase.generate])
    @given(case=cases([kind]))
    def each(case: Case) -> None:
        _play(case)

    each()
