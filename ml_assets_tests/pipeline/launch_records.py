"""Records of launches for tests."""

import platform
from typing import Any

from ml_assets.model.steps.train import LaunchRecord


def launch_record(**facts: Any) -> LaunchRecord:
    """Return the record of a launch on this machine, with some facts changed."""
    common: dict[str, Any] = {
        "at": "2024-01-01T00:00:00+00:00",
        "run_id": "a-run",
        "author": "ada",
        "checked_by": "nobody",
        "commit": "c" * 40,
        "is_dirty": False,
        "difference": "",
        "left_out": (),
        "lock": "",
        "packages": {},
        "python": platform.python_version(),
        "machine": "a machine",
        "workers": 1,
    }
    return LaunchRecord(**common | facts)
