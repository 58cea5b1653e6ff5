"""All ranks hold the same weights: copied from rank 0 at the start, and compared.

Not here: what a pass may change (trial), sums that give the same bits on all ranks (exact).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (the annotations of torch are partial)

import hashlib

from torch import nn

from ml_assets.training.process.group import Group
from ml_assets.training.step.trial import digest_of
from resources.job.errors import BadConfiguration


def begin_alike(model: nn.Module, group: Group, *, is_bitwise: bool) -> None:
    """Give all ranks the first weights of rank 0. Collective call.

    Raises `BadConfiguration` with `is_bitwise` where a rank had drawn others: the next training would begin elsewhere.
    """
    if is_bitwise:
        refuse_differences(
            model,
            group,
            "first weights differ between workers: they are drawn from a generator that the platform does not seed. "
            "Draw from torch, numpy.random or random, or use determinism tolerance",
        )
    group.copy_from_first(value.data for value in (*model.parameters(), *model.buffers()))


def refuse_differences(model: nn.Module, group: Group, message: str) -> None:
    """Raise `BadConfiguration(message)` on all ranks where one holds other weights or buffers. Collective call."""
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(digest_of(value))
    mine = int.from_bytes(digest.digest()[:8], "big", signed=True)
    if len(set(group.gather(mine))) > 1:
        raise BadConfiguration(message)
