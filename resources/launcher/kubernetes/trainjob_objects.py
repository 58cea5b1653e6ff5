"""TrainJob of a training (Kubeflow Trainer), as documents made from those of its JobSet. Pure functions.

A TrainJob refers to a TrainingRuntime, which holds the template of a JobSet. Trainer's controller makes that JobSet,
with the name of the TrainJob. Not here: the JobSet itself (jobset_objects).
"""

from resources.launcher.kubernetes.attempt_objects import QUEUE, TRAINING, TYPES
from resources.launcher.kubernetes.cluster import Document


def runtime_manifest(jobset: Document, name: str) -> Document:
    """Return a TrainingRuntime `name` whose template is `jobset`, a document for the API."""
    labels: dict[str, str] = jobset["metadata"]["labels"]
    # Who admits and removes the training sees the TrainJob. Trainer makes the JobSet again if it is removed at its end.
    spec = {
        key: value
        for key, value in jobset["spec"].items()
        if key not in {"suspend", "ttlSecondsAfterFinished"}
    }
    return {
        "apiVersion": TYPES["trainjob"]["apiVersion"],
        "kind": "TrainingRuntime",
        "metadata": {"name": name, "labels": {key: labels[key] for key in labels if key != QUEUE}},
        "spec": {"template": {"metadata": {"labels": {TRAINING: labels[TRAINING]}}, "spec": spec}},
    }


def trainjob_manifest(jobset: Document, runtime: str) -> Document:
    """Return a TrainJob with name, labels and annotations of `jobset`, of the TrainingRuntime `runtime`."""
    return {
        **TYPES["trainjob"],
        "metadata": jobset["metadata"],
        "spec": {
            "runtimeRef": {"kind": "TrainingRuntime", "name": runtime},
            "suspend": jobset["spec"].get("suspend", False),
        },
    }
