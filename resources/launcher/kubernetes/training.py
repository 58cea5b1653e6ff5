"""One training on a cluster, as all back ends see it: the Jobs of a launcher (launcher), or a JobSet (jobset).

Here: its result, and the removal of all its objects. Not here: what makes and restarts its pods, which is the whole
difference between the back ends.
"""

import math
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass

from resources.addresses import Address
from resources.artifacts import Artifacts, ArtifactsUnavailable
from resources.job.errors import AttemptsExhausted, ClusterRefused, ClusterUnavailable
from resources.job.events import read_events, training_folder_name
from resources.job.job import TrainingJob, TrainingResult
from resources.launcher.kubernetes.attempt import AttemptWatcher
from resources.launcher.kubernetes.attempt_objects import (
    ATTEMPT,
    TYPES,
    BackEnd,
    policy_manifest,
    training_selector,
)
from resources.launcher.kubernetes.cluster import AlreadyThere, Cluster, Document, Kind
from resources.launcher.kubernetes.exchange import finished, share_events, share_nodes, snapshot_name
from resources.launcher.kubernetes.output import LogTail, PodsOutput
from resources.launcher.kubernetes.prune import JOBS, remove
from resources.launcher.kubernetes.worker_keys import WorkerKeys
from resources.launcher.protocol import goes_on_after, nobody_comes_back
from resources.launcher.resource_profile import ResourceProfile
from resources.settings import KubernetesSettings

NO_RESULT = "all pods ended with exit code 0 but wrote no result"
CANCEL_GRACE_SECONDS = 5
"""Seconds for the pods of a cancelled training to save. No pod may be left after 10 s."""
_CLEAN_SECONDS = 30.0
"""Time limit of the last clean-up in seconds. A pruner removes the rest."""


@dataclass(frozen=True, kw_only=True)
class ClusterTraining:
    """A training, its cluster, and the destinations of its output."""

    cluster: Cluster
    job: TrainingJob
    profile: ResourceProfile
    settings: KubernetesSettings
    artifacts: Artifacts
    s3_endpoint_url: Address | None
    """Address of the artifacts' S3 server, as pods see it."""
    logs: LogTail
    output: PodsOutput
    keys: WorkerKeys | None
    """Keys of the workers if the launcher assumes a role for them."""
    comes_back: Callable[[BaseException], bool] = nobody_comes_back
    """See `TrainingLauncher.run`."""

    @property
    def selector(self) -> str:
        """Selector of all objects of the training."""
        return training_selector(self.job)

    def profile_of(self, attempt: int) -> ResourceProfile:
        """Return the resources of an attempt. The last ones, by number, may have nodes that nobody takes away."""
        if not self.profile.on_demand_last or attempt < self.job.settings.max_attempts:
            return self.profile
        return self.profile.changed({"node_selector": self.profile.node_selector | self.settings.on_demand})

    @property
    def folder(self) -> str:
        """Address of the training's folder, which pods can read."""
        return self.artifacts.address(training_folder_name(self.job))

    @property
    def snapshot(self) -> str:
        """Address of the snapshot, which pods can read."""
        return self.artifacts.address(snapshot_name(self.job))

    def finished(self, *, has_pods: bool = False) -> TrainingResult | None:
        """Return the result, or None. With a result, pass on all its events, also those that the log lost.

        Without a result, store the events that only the log has, for the next attempt. `has_pods`: an attempt may run,
        whose pods store the same file themselves; then store nothing.
        """
        result = finished(self.artifacts, self.job)
        if result is not None:
            self.output.tell(read_events(self.artifacts.folder(training_folder_name(self.job))))
        elif has_pods:
            return None
        with suppress(*([ArtifactsUnavailable] if result is not None else [])):  # the result is here already
            share_events(self.artifacts, self.job, self.output.events)
        return result

    def equip(self, kind: BackEnd, owner: Document) -> None:
        """Make what the pods of `owner`, the training's Job, JobSet or TrainJob, need beside it, unless that is done.

        The settings say what: keys of S3; and a policy by which the pods reach each other, for a training of several.
        """
        if self.keys is not None:
            self.keys.give({**owner, **TYPES[kind]})
        if self.settings.isolated and self.profile.most_nodes > 1:
            with suppress(AlreadyThere):
                self.cluster.create("network_policy", policy_manifest(self.job, kind, owner))

    def watcher(
        self,
        job: Document,
        lost: threading.Event,
        *,
        grow_after: float = math.inf,
        earlier: Collection[str] = (),
        queued: Document | None = None,
    ) -> AttemptWatcher:
        """Return a watcher of the attempt whose Job is `job`; see `AttemptWatcher`."""
        return AttemptWatcher(
            cluster=self.cluster,
            job=job,
            profile=self.profile_of(int(job["metadata"]["labels"].get(ATTEMPT, 0))),
            settings=self.settings,
            logs=self.logs,
            output=self.output,
            lost=lost,
            grow_after=grow_after,
            earlier=earlier,
            queued=queued,
            share_nodes=lambda pods: share_nodes(self.artifacts, self.job, pods),
        )

    def exhausted(self, failures: int, said: str) -> AttemptsExhausted:
        """Return the error of a training that may fail no more often. `said`: why it failed last."""
        return AttemptsExhausted(
            f"{failures} attempts failed, {said}. The last lines of {self.output.log_file}:\n{self.output.tail}"
        )

    def goes_on_after(self, error: BaseException) -> bool:
        """True if `error` ends the wait of this launcher alone: its pods stay, and may still train."""
        return goes_on_after(error, self.comes_back)

    def clean(
        self,
        why: BaseException | None,
        kinds: Collection[Kind] = JOBS,
        is_ours: Callable[[Cluster], bool] = lambda _: True,
    ) -> None:
        """Remove all pods, and the objects of these `kinds`, if `is_ours` says so once more. `why`: the exception that
        ends the training, if any.

        A cluster that refuses or does not answer does not change the outcome. A pruner removes the rest.
        """
        self.logs.stop()
        try:
            with self.cluster.impatient(_CLEAN_SECONDS) as cluster:
                if is_ours(cluster):
                    remove(cluster, self.selector, CANCEL_GRACE_SECONDS, kinds)
        except (ClusterUnavailable, ClusterRefused) as error:
            said = f"its pods could not be deleted; a launcher or the daemon prunes them later: {error}"
            if why is None:
                self.output.say(said)
            else:
                why.add_note(said)
