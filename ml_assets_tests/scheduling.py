"""Grouping of tests among processes: those that share a slow fixture stay together.

The folders of tests on servers and on a cluster say what belongs together; `pytest-xdist` does the rest.
"""

from collections.abc import Callable
from typing import Any

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling


class Grouped(LoadScopeScheduling):
    """Hands out whole groups, in the order of the tests (`--no-loadscope-reorder`)."""

    def __init__(self, config: pytest.Config, log: Any, group_of: Callable[[str], str]) -> None:
        super().__init__(config, log)
        self._group_of = group_of

    def _split_scope(self, nodeid: str) -> str:
        return self._group_of(nodeid)
