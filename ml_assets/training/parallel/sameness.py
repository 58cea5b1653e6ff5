"""Equal weights on all ranks: copied from rank 0 at the start, and compared.

Not here: changes that a pass may make (step.trial), sums that give the same bits on all ranks (exact).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (the annotations of torch are partial)

import hashlib

from torch import nn

from ml_assets.training.process.group import Group
from ml_assets.training.step.trial import digest_of
from resources.job.errors import BadConfiguration


def begin_alike(model: nn.Module, group: Group, *, is_bitwise: bool) -> None:
    """Copy the first weights of rank 0 to all ranks. Collective call.

    With `is_bitwise`, raises `BadConfiguration` if a rank drew other weights: the next training would start
    differently.
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
    """Raise `BadConfiguration(message)` on all ranks if their weights or buffers differ. Collective call."""
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(digest_of(value))
    mine = int.from_bytes(digest.digest()[:8], "big", signed=True)
    if len(set(group.gather(mine))) > 1:
        raise BadConfiguration(message)
