"""The agent of a node: how it reads the end of its ranks."""

import pytest

from ml_assets.model.training.node.agent import came_from


class Asked(Exception):
    """Stands for the signal."""


def fail_in_the_timer() -> None:
    """Raise what torch's timer raises if the signal arrives in its first line."""
    try:
        raise Asked
    finally:
        raise UnboundLocalError("cannot access local variable 'start'")


def test_a_signal_counts_although_its_handling_failed() -> None:
    """The ranks had saved, and their pod ended with 1, which the launcher takes for a failure."""
    with pytest.raises(UnboundLocalError) as found:
        fail_in_the_timer()
    assert came_from(found.value, Asked)
    assert came_from(Asked(), Asked)


def test_another_error_is_no_signal() -> None:
    assert not came_from(ValueError(), Asked)
