"""The first line of a rank. Apart from what a rank does (entry), so that an agent, which has to name this function,
need not import all that only ranks use: it starts sooner, and so does a training that resumes.
"""

from pathlib import Path

from resources.job.job import TrainingJob


def main(job_file: str, *more: str) -> None:
    """See `entry.main`, or `script.rank.main` where the job names a script."""
    if TrainingJob.from_json(Path(job_file).read_text()).entry:
        from ml_assets.training.script import script_rank as script_rank

        script_rank.main(job_file, *more)
    else:
        from ml_assets.training import entry

        entry.main(job_file, *more)
