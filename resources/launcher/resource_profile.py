"""Resources of a training's workers: the `resources` section of a pipeline.

Here: the keys, and their changes by a partition or a launch. Not here: the pods made from them
(`kubernetes.attempt_objects`). Resources change no weights, so they are not part of a job's fingerprint.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, model_validator

from resources.documented import Documented
from resources.job.training_settings import TrainingSettings

_NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
_BYTES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30,
          "Ti": 2**40}  # fmt: skip

Name = Annotated[str, Field(pattern=_NAME, max_length=253)]
"""Name of a Kubernetes object."""
Cores = Annotated[str, Field(pattern=r"^\d+(\.\d+)?m?$")]
"""Number of processor cores: `2`, `0.5`, `500m`."""
Bytes = Annotated[str, Field(pattern=r"^\d+(\.\d+)?(k|M|G|T|Ki|Mi|Gi|Ti)?$")]
"""Number of bytes: `4Gi`, `512M`."""


class ProfileRefused(ValueError):
    """A change names an unknown key or an invalid value, or the profile contradicts the training settings."""


class _Part(Documented, BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)


class Toleration(_Part):
    """Taint of nodes on which the pods may run nevertheless."""

    key: str | None = None
    """Key of the taint. Not given, with `operator: Exists`: every taint."""
    operator: Literal["Equal", "Exists"] = "Equal"
    """`Exists`: tolerate any value of the key. `Equal`: tolerate only this `value`."""
    value: str | None = Field(default=None, examples=["trainings"])
    """Value of the taint."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint. Not given: all three."""
    seconds: int | None = Field(default=None, ge=0)
    """Seconds for which a pod stays after a `NoExecute` taint was added; for ever if not given."""


class Volume(_Part):
    """Volume mounted into every pod, from one of four sources: `claim`, `secret`, `config_map` or `host_path`."""

    mount_path: str = Field(pattern=r"^/")
    """Absolute path in the container."""
    claim: Name | None = None
    """Name of a PersistentVolumeClaim."""
    secret: Name | None = Field(default=None, examples=["warehouse-keys"])
    """Name of a Secret."""
    config_map: Name | None = Field(default=None, examples=["vocabulary"])
    """Name of a ConfigMap."""
    host_path: str | None = Field(default=None, pattern=r"^/", examples=["/mnt/nvme"])
    """Absolute path of a folder of the node."""
    sub_path: str | None = Field(default=None, examples=["prices/2024"])
    """Path inside the volume."""
    read_only: bool = True
    """Mount it without write access."""

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        given = [name for name in ("claim", "secret", "config_map", "host_path") if getattr(self, name)]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise ValueError(
                f"a volume has one of claim, secret, config_map, host_path; {self.mount_path} has {found}"
            )
        return self


class NodeRange(_Part):
    """Range of pods of an elastic training. It trains with as many pods as there is room for."""

    min: int = Field(ge=1)
    """Least number of pods. With room for fewer, the training waits."""
    max: int
    """Greatest number of pods. The training begins with this number if there is room, and grows back to it later; in a
    queue only after an eviction."""

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.max < self.min:
            raise ValueError(f"nodes.max {self.max} is less than nodes.min {self.min}: swap them")
        return self


def _kind_of_nodes(value: Any) -> str:
    """Return the tag of a value, so that an error concerns the form that was given and not the other form."""
    return "range" if isinstance(value, Mapping | NodeRange) else "number"


Nodes = Annotated[
    Annotated[int, Field(ge=1), Tag("number")] | Annotated[NodeRange, Tag("range")],
    Discriminator(_kind_of_nodes),
]


class ResourceProfile(_Part):
    """Resources of each pod of a training. Quantities are written as in Kubernetes."""

    image: str | None = Field(default=None, min_length=1, examples=["registry.example.com/trees@sha256:…"])
    """Image of the workers, if they need packages that `ML_ASSETS_KUBERNETES_IMAGE` lacks."""
    nodes: Nodes = 1
    """Number of pods, or `{min, max}`. The greatest number of pods shares the workers equally. With fewer pods there
    are fewer workers; each pod keeps its number."""
    cpu: Cores = "1"
    """Cores reserved for each pod. A pod may use more on an idle node."""
    memory: Bytes = "4Gi"
    """Memory reserved for each pod, and its limit."""
    gpus: int = Field(default=0, ge=0)
    """GPUs of each pod, as `nvidia.com/gpu`: as many as its workers, or none."""
    shared_memory: Bytes = "256Mi"
    """Size of /dev/shm. Its used part counts as memory of the pod."""
    scratch: Bytes = "20Gi"
    """Disk of each pod for the snapshot, checkpoints and temporary files: reserved on its node, and its limit."""
    shard_cache: Bytes | None = None
    """Part of `scratch` that training shards may fill. A shard is then downloaded shortly before it is needed. Not
    given: all shards are downloaded before the training starts."""
    spread: Literal["preferred", "required"] = "preferred"
    """Place the pods on different nodes. `preferred`: if possible. `required`: else a pod waits."""
    node_selector: dict[str, str] = Field(default_factory=dict)
    """Labels that a node must have."""
    tolerations: tuple[Toleration, ...] = ()
    """Taints of nodes that the pods tolerate."""
    on_demand_last: bool = False
    """From attempt `training.max_attempts` on, use only nodes with the labels `ML_ASSETS_KUBERNETES_ON_DEMAND`. Then a
    training that lost its spot machines so often ends. It uses Jobs in any case."""
    priority_class: Name | None = None
    """Name of a PriorityClass of the cluster."""
    deadline_minutes: float | None = Field(default=None, gt=0)
    """Time limit of an attempt in minutes. A longer attempt fails the training; it is not retried."""
    grace_seconds: int = Field(default=60, ge=1)
    """Seconds from SIGTERM to SIGKILL if the cluster ends a pod: time to save and upload a checkpoint."""
    env: dict[str, str] = Field(default_factory=dict, examples=[{"NCCL_DEBUG": "INFO"}])
    """Environment variables of the workers."""
    env_from_secrets: tuple[Name, ...] = ()
    """Secrets. Each key of them becomes an environment variable."""
    volumes: tuple[Volume, ...] = ()
    """Volumes mounted into the workers."""
    pull_secrets: tuple[Name, ...] = ()
    """Secrets with the credentials of an image registry."""
    service_account: Name | None = Field(default=None, examples=["trainer"])
    """Service account of the pods. Its token is not mounted, but registries and clouds may grant rights to its name.
    With it, the pods need no keys of S3 in a Secret.
    """
    run_as_user: int = Field(default=65532, ge=1)
    """Numeric user and group of the workers, never root."""
    queue: Name | None = None
    """Name of a Kueue LocalQueue in the namespace. The pods start once its quota has room for all of them, or
    for at least `nodes.min` of an elastic training."""
    labels: dict[str, str] = Field(default_factory=dict, examples=[{"cost-center": "planning"}])
    """Additional labels of the pods and the Job."""

    @model_validator(mode="after")
    def _shards_fit_the_disk(self) -> Self:
        if self.shard_cache is not None and bytes_of(self.shard_cache) > bytes_of(self.scratch):
            raise ValueError(
                f"shard_cache {self.shard_cache} is a part of scratch {self.scratch}, which is smaller: raise scratch"
            )
        return self

    @property
    def least_nodes(self) -> int:
        """Least number of pods with which it trains."""
        return self.nodes if isinstance(self.nodes, int) else self.nodes.min

    @property
    def most_nodes(self) -> int:
        """Number of pods that it has if there is room."""
        return self.nodes if isinstance(self.nodes, int) else self.nodes.max

    def in_words(self, nodes: int) -> str:
        """Return the resources of an attempt with `nodes` pods, for a log line."""
        return f"{nodes} pods of {self.cpu} CPU, {self.memory}, {self.gpus} GPUs"

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """Return this profile with some fields replaced as a whole. Raise `ProfileRefused`."""
        known = sorted(type(self).model_fields)
        for name in changes:
            if name not in known:
                raise ProfileRefused(f"resources have no key '{name}'; the keys are: {', '.join(known)}")
        try:
            return type(self).model_validate({**self.model_dump(), **changes})
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ProfileRefused(f"resources: {where}: {first['msg']}, not {first['input']!r}") from error


def ranks_of_a_node(settings: TrainingSettings, profile: ResourceProfile) -> int:
    """Return the number of workers of each pod: all workers divided by the greatest number of pods.

    Raise `ProfileRefused` if that leaves a remainder, cuts a copy of the model, or does not fit the GPUs.
    """
    most, workers, copy = profile.most_nodes, settings.workers, settings.parallel.model_workers
    if workers % most:
        raise ProfileRefused(
            f"training.workers {workers} cannot be shared equally by resources.nodes {most}: {workers} / {most} = "
            f"{workers / most:g}; use {-(-workers // most) * most} workers, or other nodes"
        )
    if profile.least_nodes < most and workers // most % copy:
        raise ProfileRefused(
            f"each of {profile.least_nodes} to {most} nodes must hold whole copies of the model: a copy takes "
            f"{copy} workers, and a pod has {workers} / {most} = {workers // most}; use {copy * most} workers, or "
            f"nodes: {most}"
        )
    if profile.gpus and settings.device == "cpu":
        raise ProfileRefused(
            f"resources.gpus {profile.gpus} would be reserved and never used, as training.device is cpu: use gpus: 0, "
            "or device: auto"
        )
    if profile.gpus and profile.gpus != workers // most:
        why = (
            ("fewer than the workers of a pod", "a worker on the CPU would slow down the others")
            if profile.gpus < workers // most
            else (
                "more than the workers of a pod",
                "a worker uses one GPU, so the others would be paid for and idle",
            )
        )
        raise ProfileRefused(
            f"resources.gpus {profile.gpus} are {why[0]}, training.workers {workers} / resources.nodes {most} = "
            f"{workers // most}, and {why[1]}: use gpus: {workers // most}, or {profile.gpus * most} workers"
        )
    return workers // most


def changes_of(text: str) -> dict[str, Any]:
    """Parse the changes of a launch or of a run's tag: `memory=8Gi,nodes=2`, or a JSON object.

    Raise `ProfileRefused`.
    """
    text = text.strip()
    if text.startswith("{"):
        try:
            return dict(json.loads(text))
        except ValueError as error:
            raise ProfileRefused(f"resources {text!r} are not a valid JSON object: {error}") from error
    changes: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals:
            raise ProfileRefused(f"{part!r} has no value: write memory=8Gi,nodes=2, or a JSON object")
        changes[name.strip()] = value.strip()
    return changes


def bytes_of(quantity: str) -> int:
    """Return the bytes of a quantity such as `512Mi`."""
    number = quantity.rstrip("kMGTi")
    return int(float(number) * _BYTES[quantity.removeprefix(number)])


def cores_of(quantity: str) -> float:
    """Return the processor cores of a quantity such as `500m`."""
    return float(quantity[:-1]) / 1000 if quantity.endswith("m") else float(quantity)
