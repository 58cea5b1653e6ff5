"""Random numbers of an epoch that do not depend on the epochs before it, so that a resume needs no state of them."""

# pyright: reportUnknownMemberType=false
# (the annotations of torch are partial)

import hashlib
import random

import numpy as np
import torch

from ml_assets.model.training.script.api import Training


def seed_of_epoch(training: Training, epoch: int) -> None:
    """Seed torch, numpy and random from the job's seed, the number of the epoch and the rank."""
    text = f"{training.job.seed},{epoch},{training.rank}"
    value = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
    torch.manual_seed(value)
    np.random.seed(value % 2**32)
    random.seed(value)
