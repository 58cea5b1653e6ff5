"""Ranks hear of a request in time, and ask each other no more often than they have to."""

import time
from collections.abc import Callable, Sequence

from ml_assets.model.training.process.group import Agreement, Group


class CountingGroup(Group):
    """Counts rounds."""

    rounds = 0

    def begin_sum(self, values: Sequence[float]) -> Callable[[], list[float]]:
        type(self).rounds += 1
        return super().begin_sum(values)


def test_a_request_is_heard_a_step_later_where_steps_are_long(group: Group) -> None:
    agreement, heard = Agreement(group), list[int]()
    for step in range(1, 6):
        time.sleep(0.11)
        stops, saves = agreement.step(stops=step >= 3, saves=False)
        assert not saves
        if stops:
            heard.append(step)
            break
    assert heard == [4]


def test_quick_steps_are_asked_about_in_groups(group: Group) -> None:
    """Ranks agree once for several quick steps. When steps become slow, they agree at the next step."""
    CountingGroup.rounds = 0
    counting = CountingGroup(**vars(group))
    agreement = Agreement(counting)
    for _ in range(400):
        agreement.step(stops=False, saves=False)
    assert 20 <= CountingGroup.rounds <= 40
    agreement.change_pace()
    assert agreement.step(stops=False, saves=True) == (False, False)
    assert agreement.step(stops=False, saves=False) == (False, True)
