"""Jobs of the launchers' tests, whose worker only plays its part (`scripted_worker`)."""

from resources.job.job import TrainingJob
from resources.job.training_settings import TrainingSettings


def job_of(*plan: str, max_attempts: int = 3) -> TrainingJob:
    """Return a job with a word for each attempt."""
    return TrainingJob(
        model="small",
        partition="2024-01-01",
        model_function="a.b",
        objective="binary",
        hyperparameters={"plan": list(plan)},
        snapshot="/nowhere",
        snapshot_digest="0" * 64,
        code_version="",
        seed=0,
        settings=TrainingSettings(max_attempts=max_attempts),
    )
