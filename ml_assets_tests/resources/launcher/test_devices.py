"""Fewer GPUs than workers are refused with the arithmetic; a training on the CPU is asked for, never silent."""

import pytest

from resources.job.errors import BadConfiguration
from resources.job.training_settings import TrainingSettings
from resources.launcher.protocol import refuse_few_gpus
from resources.launcher.resource_profile import ProfileRefused, ResourceProfile, ranks_of_a_node


@pytest.mark.parametrize(("gpus", "ranks"), [(0, 2), (1, 1), (4, 2)])
def test_no_gpu_or_one_for_each_worker_is_fine(gpus: int, ranks: int) -> None:
    refuse_few_gpus(gpus, ranks, nodes=1)


@pytest.mark.parametrize(
    ("gpus", "ranks", "nodes", "said"),
    [
        (1, 2, 1, "1 GPU for 2 workers, .* set training.workers to 1, or training.device to cpu"),
        (2, 4, 3, "2 GPUs for 12 / 3 machines = 4 workers, .* set training.workers to 6, or"),
    ],
)
def test_fewer_gpus_than_workers_are_refused(gpus: int, ranks: int, nodes: int, said: str) -> None:
    with pytest.raises(BadConfiguration, match=said):
        refuse_few_gpus(gpus, ranks, nodes)


def test_gpus_reserved_for_a_training_on_the_cpu_are_refused() -> None:
    settings = TrainingSettings(workers=2, device="cpu")
    with pytest.raises(ProfileRefused, match=r"resources\.gpus 2 .*never used"):
        ranks_of_a_node(settings, ResourceProfile(gpus=2))
    assert ranks_of_a_node(settings, ResourceProfile()) == 2


@pytest.mark.parametrize(
    ("workers", "gpus", "nodes", "said"),
    [
        (1, 8, 1, "resources.gpus 8 are more than the workers of a pod, .* use gpus: 1, or 8 workers"),
        (4, 4, 2, "resources.gpus 4 are more than the workers of a pod, .* use gpus: 2, or 8 workers"),
        (4, 1, 2, "resources.gpus 1 are fewer than the workers of a pod, .* use gpus: 2, or 2 workers"),
    ],
)
def test_gpus_of_a_pod_are_as_many_as_its_workers(workers: int, gpus: int, nodes: int, said: str) -> None:
    """A pod of one worker with eight GPUs was accepted, and its eight hours counted as one."""
    with pytest.raises(ProfileRefused, match=said):
        ranks_of_a_node(TrainingSettings(workers=workers), ResourceProfile(gpus=gpus, nodes=nodes))
    per_pod = workers // nodes
    assert (
        ranks_of_a_node(TrainingSettings(workers=workers), ResourceProfile(gpus=per_pod, nodes=nodes))
        == per_pod
    )
