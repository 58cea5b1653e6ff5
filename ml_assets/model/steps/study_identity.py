"""Identity of a study: all that decides its trials, as a digest and for people.

Not here: the words of a difference (`tuning.study`), the study itself (`tune`).
"""

import dataclasses
import hashlib
import json

from ml_assets.extras.tuning.spec import TuningSection
from ml_assets.foundation.sections import Section
from ml_assets.model.steps.values import TrainingSet


def study_digest(frozen: TrainingSet, tuning: TuningSection) -> str:
    """Return the SHA-256 of all that decides the trials of a study, except their number."""
    facts = {
        "job": frozen.job.fingerprint,
        "space": tuning.space.model_dump(mode="json"),
        "sampler": tuning.sampler,
        "pruner": tuning.pruner,
        "prior": None if tuning.prior is None else tuning.prior.model_dump(mode="json"),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def decided_by(frozen: TrainingSet, tuning: TuningSection) -> dict[str, str]:
    """Return the parts of `study_digest` for people: name → value."""
    job = dataclasses.asdict(frozen.job) | {"settings": frozen.job.settings.identity}
    parts = {"hyperparameters": "model.hyperparameters.", "settings": "training.", "packages": "package "}
    return {
        **{f"space {name}": _as_written(one) for name, one in tuning.space.dimensions.items()},
        "sampler": tuning.sampler,
        "pruner": tuning.pruner,
        "prior": "none" if tuning.prior is None else _as_written(tuning.prior),
        **{f"{parts[part]}{name}": f"{value}" for part in parts for name, value in job[part].items()},
        **{
            name: f"{value}"
            for name, value in job.items()
            if name not in (*parts, "snapshot", "platform_text")
        },
    }


def _as_written(section: Section) -> str:
    """Return a section as a file has it: `{kind: int, low: 8, high: 128}`."""
    return section.model_dump_json(exclude_unset=True).replace('"', "").replace(":", ": ").replace(",", ", ")
