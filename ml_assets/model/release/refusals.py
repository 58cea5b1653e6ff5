"""Reasons for which a decision about a release is not taken, and its repetition if its grounds changed meanwhile."""

from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")


class NotRegistrable(Exception):
    """The bundle's newest evaluation rejected it, or it has no evaluation. No version is registered."""


class NotPromotable(Exception):
    """A promotion, demotion, rollback or archival is not allowed. The message has the reason and the remedy."""


class NotReviewable(Exception):
    """An approval or rejection by a person is not allowed. The message has the rule and the remedy."""


class RulesNotAccepted(Exception):
    """A change of a model's rules is not allowed. The message has the rule and the remedy."""


class Overtaken(Exception):
    """The grounds of a decision changed while they were looked up, for example by a new evaluation."""


def until_not_overtaken(decide: Callable[[], Answer]) -> Answer:
    """Return what `decide` returns; call it again as long as its grounds change while it looks them up."""
    while True:
        try:
            return decide()
        except Overtaken:
            continue
