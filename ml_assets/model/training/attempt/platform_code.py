"""Platform's own modules that run in the workers: their version, and a digest of the whole platform's text.

The version takes 0.4 s to compute, since it follows imports and compares meaning. Equal text has an equal version and
takes a twentieth of that. Not here: comparing them with a job (same_code), code of pipelines
(ml_assets.foundation.code).
"""

import hashlib
from pathlib import Path

import ml_assets
from ml_assets.foundation.code.code_version import modules_version

_AGENT = "ml_assets.model.training.node.agent"
_LOOP = "ml_assets.model.training.entry"
_SCRIPT = "ml_assets.model.training.script.script_rank"
_CHANGES_NO_WEIGHTS = (
    "resources",  # documents, whose values are in the fingerprint, and transport, whose bytes have digests
    "ml_assets.model.training.telemetry",
    "ml_assets.model.training.attempt",
    "ml_assets.model.training.beginning",
    "ml_assets.model.training.process.heartbeat",
)
"""Modules that only report on a training or count its attempts: none of them handles a tensor."""


def worker_modules(script: str) -> tuple[list[str], list[str]]:
    """Return the modules that a worker begins with, and the modules behind them that do not count.

    `script` is the pipeline's script, or empty if it has a model function.
    """
    # Another version of XGBoost does not change the training of a torch module.
    without = [*_CHANGES_NO_WEIGHTS, *([] if script else ["ml_assets.model.training.script"])]
    return [_AGENT, _SCRIPT if script else _LOOP], without


def loop_version(script: str) -> str:
    """Return the version of the platform's modules that run in the workers: 16 hex digits."""
    names, without = worker_modules(script)
    return modules_version(names, without=without)


def platform_text() -> str:
    """Return the SHA-256 of the names and texts of all modules of the platform, as they are on this machine."""
    folder = Path(ml_assets.__path__[0])
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        text = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()} {len(text)}\n".encode())
        digest.update(text)
    return digest.hexdigest()
