"""Equal weights on all ranks, copied from rank 0 at the start and compared; equal arithmetic of all processes.

Not here: changes that a pass may make (step.preflight), sums that give the same bits on all ranks (reduction).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (the annotations of torch are partial)

import hashlib

from torch import nn

from ml_assets.model.training.process.group import Group
from ml_assets.model.training.step.model_digests import digest_of
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


def refuse_other_numbers(preflight_digest: int, group: Group) -> None:
    """Raise `BadConfiguration` on all ranks if a rank computed another digest in its preflight. Collective call."""
    others = group.gather(preflight_digest)
    rank = next((rank for rank, other in enumerate(others) if other != others[0]), 0)
    if rank:
        raise BadConfiguration(
            f"ranks 0 and {rank} computed different numbers from the same rows and weights: {_WHY_OTHER}"
        )


def refuse_other_machine(preflight_digest: int, recorded: int, step: int) -> None:
    """Raise `BadConfiguration` if `preflight_digest` is not the one `recorded` in the checkpoint of `step`."""
    if preflight_digest != recorded:
        raise BadConfiguration(
            f"the attempts up to step {step} computed other numbers from the same rows and first weights than this "
            f"one: {_WHY_OTHER}. The checkpoints are kept"
        )


_WHY_OTHER = (
    "the machines differ (kind of processor or GPU), or the model reads something that differs between processes "
    "(process id, host name, clock, environment variable). So determinism bitwise cannot hold: use machines of one "
    "kind, remove that from the model, or use determinism tolerance"
)
