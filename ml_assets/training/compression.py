"""Gradients made smaller for the way between replicas: `comm`.

Here: torch's communication hooks, as this engine uses them. Not here: who holds what (layouts).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportArgumentType=false
# pyright: reportPrivateImportUsage=false
# (the annotations of torch are partial)

import torch
from torch import distributed
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from resources.launcher.training_settings import Comm

_RANK = 4
"""Of the matrices that stand for a gradient: the larger of those Vogels et al. (2019) reach plain SGD with."""
_FEWEST_STEPS = 2
"""Before compression: DDP sorts its buckets anew after the first."""


def compress(
    replica: DistributedDataParallel,
    comm: Comm,
    process_group: distributed.ProcessGroup | None,
    seed: int,
    warmup: int,
) -> None:
    """Have `replica` send its gradients as `comm` says.

    `powersgd` sends them whole for the `warmup` steps that are left, when they change most (as its authors advise),
    then two thin matrices for each gradient of two dimensions. What that leaves out is added to the next gradient; this
    memory is a rank's own, and begins anew in each attempt.
    """
    if comm == "bf16":
        replica.register_comm_hook(process_group, bf16_compress_hook)
    if comm == "powersgd":
        state = PowerSGDState(
            process_group,
            matrix_approximation_rank=_RANK,
            start_powerSGD_iter=max(warmup, _FEWEST_STEPS),
            orthogonalization_epsilon=1e-8,  # embeddings have columns of zeros
            random_seed=seed,
        )
        replica.register_comm_hook(state, _one_after_the_other)


def _one_after_the_other(
    state: PowerSGDState, bucket: distributed.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """A bucket takes three sums, each begun when the one before is there. Those of several buckets at once would
    begin in another order on each rank, and be taken for each other."""
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(powerSGD_hook(state, bucket).wait())
    return done
