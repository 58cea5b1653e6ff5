"""Training on a cluster: the Lease of the training, its attempts, and the removal of everything afterwards.

Here: `KubernetesLauncher`, and its exchange with the pods through the artifacts: the inputs, the result, the events.
The launcher that holds the Lease leads the training. Other launchers follow, and take over if it dies. Not here: one
attempt (attempt), the program of the pods (a command to this module).
"""

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from resources.addresses import Address
from resources.artifacts import ArtifactMissing, Artifacts, ArtifactsUnavailable
from resources.files import whole_file
from resources.job.errors import (
    AttemptsExhausted,
    BadConfiguration,
    ClusterRefused,
    ClusterUnavailable,
    TrainingFailed,
)
from resources.job.events import (
    EVENTS,
    JOB,
    RESULT,
    SNAPSHOTS,
    WEIGHTS,
    TrainingEvent,
    read_events,
    training_folder_name,
)
from resources.job.job import TrainingJob, TrainingResult
from resources.launcher.kubernetes import attempt_objects
from resources.launcher.kubernetes.attempt import AttemptWatcher, newest, pods_of, size_of, start
from resources.launcher.kubernetes.capacity import AttemptPlan
from resources.launcher.kubernetes.classify import AttemptEnd
from resources.launcher.kubernetes.cluster import Cluster, Document
from resources.launcher.kubernetes.lease import Lease, LeaseLost
from resources.launcher.kubernetes.output import LogTail, PodsOutput
from resources.launcher.kubernetes.prune import prune, remove
from resources.launcher.protocol import in_words, pause_after, refuse_without_gpus
from resources.launcher.resource_profile import ProfileRefused, ResourceProfile, ranks_of_a_node
from resources.settings import KubernetesSettings

SNAPSHOT = "snapshot.json"


def snapshot_name(job: TrainingJob) -> str:
    """Return the name of the snapshot's folder among the artifacts."""
    return f"{SNAPSHOTS}/{job.snapshot_digest}"


def share_inputs(artifacts: Artifacts, job: TrainingJob) -> None:
    """Push the job and its snapshot to the artifacts, where pods read them. A snapshot that is complete there stays."""
    # The job first: garbage collection keeps the snapshot of a job without a result.
    folder = artifacts.folder(training_folder_name(job))
    with whole_file(folder / JOB) as writing:
        writing.write_text(job.to_json())
    artifacts.push(training_folder_name(job), [JOB])
    name = snapshot_name(job)
    if not artifacts.exists(name, SNAPSHOT):
        _fill(artifacts.folder(name), Path(job.snapshot))
        artifacts.push(name, last=SNAPSHOT)


def finished(artifacts: Artifacts, job: TrainingJob) -> TrainingResult | None:
    """Return the result of the pods and pull its folder to this machine; None if there is no result yet.

    A result of another job, or with damaged weights, does not count.
    """
    name = training_folder_name(job)
    if not artifacts.exists(name, RESULT):
        return None
    folder = artifacts.pull(name, [RESULT])
    result = TrainingResult.read(folder / RESULT)
    if result.fingerprint != job.fingerprint:
        return None
    wanted = [file for file in artifacts.files(name) if not file.startswith("checkpoints/")]
    try:
        artifacts.pull(name, wanted, last=RESULT)
    except ArtifactMissing:
        return None
    weights = folder / WEIGHTS
    if not result.has_weights(weights):
        return None
    result = replace(result, weights=str(weights))
    with whole_file(folder / RESULT) as writing:  # later steps read it and need the local path of the weights
        writing.write_text(result.to_json())
    return result


def share_events(artifacts: Artifacts, job: TrainingJob, told: Iterable[TrainingEvent]) -> None:
    """Pull the events that pods have uploaded, and upload those of `told` that are missing there.

    A lost pod loses its own events, and the next attempt must know how far the training came.
    """
    name = training_folder_name(job)
    with suppress(ArtifactMissing):
        artifacts.pull(name, [EVENTS])
    file = artifacts.folder(name) / EVENTS
    there = set(file.read_text().splitlines()) if file.exists() else set[str]()
    if missing := [line for event in told if (line := event.to_line()) not in there]:
        with file.open("a") as events:
            events.writelines(f"{line}\n" for line in missing)
        artifacts.push(name, [EVENTS])


def _fill(place: Path, snapshot: Path) -> None:
    """Link the files of `snapshot` into `place`. Copy them if `place` is on another disk."""
    for path in sorted(path for path in snapshot.rglob("*") if path.is_file()):
        target = place / path.relative_to(snapshot)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        try:
            os.link(path, target)
        except OSError:
            shutil.copyfile(path, target)


_FOLLOW_SECONDS = 1.0
_CANCEL_GRACE_SECONDS = 5
"""Seconds for the pods of a cancelled training to save. No pod may be left after 10 s."""
_CLEAN_SECONDS = 30.0
"""Time limit of the last clean-up in seconds. A pruner removes the rest."""
_RELEASE_SECONDS = 5.0
"""Time limit of deleting the Lease in seconds. Otherwise the Lease expires."""
_PRUNE_SECONDS = 10.0
"""Time limit of pruning in seconds. The next pruner tries again."""


@dataclass(frozen=True, kw_only=True)
class KubernetesLauncher:
    """`TrainingLauncher` on a cluster. Returns the result of a finished job of the same fingerprint at once."""

    settings: KubernetesSettings
    artifacts: Artifacts
    s3_endpoint_url: Address | None = None
    """Address of the artifacts' S3 server, as this machine sees it."""

    def run(
        self,
        job: TrainingJob,
        folder: Path,
        on_event: Callable[[TrainingEvent], None],
        on_log: Callable[[str], None],
        profile: ResourceProfile | None = None,
        run_id: str = "",
    ) -> TrainingResult:
        """See `TrainingLauncher.run`. If another launcher leads this job, follow the lines of its pods until it ends.
        If it did not finish, take over and keep the pods that still run.

        Both callbacks run in the caller's thread. If one raises, the pods get time to save and are removed. If the API
        server or the artifacts are away, the pods stay: they may still train.
        """
        profile = profile or ResourceProfile()
        self._require_usable(job, folder, profile)
        if (result := finished(self.artifacts, job)) is not None:
            return result
        share_inputs(self.artifacts, job)
        cluster = self._connect()
        threading.Thread(target=self._prune_quietly, daemon=True).start()
        lease = Lease(
            cluster,
            attempt_objects.training_name(job),
            attempt_objects.training_labels(job),
            self.settings.lease_seconds,
            run_id,
        )
        with PodsOutput(folder, on_event, on_log) as output:
            logs = LogTail(cluster, lambda pod, line: output.take(line, f"pod {pod.index}: "))
            try:
                while True:
                    self._follow(cluster, job, lease, logs)
                    with suppress(LeaseLost):
                        return _LeaderRun(self, cluster, job, profile, lease, logs, output).run()
            finally:
                logs.stop()

    def facts(self, profile: ResourceProfile | None = None) -> dict[str, str]:
        """See `TrainingLauncher.facts`."""
        profile = profile or ResourceProfile()
        given = profile.model_dump(mode="json", exclude_defaults=True, exclude={"env"})
        return {
            "launcher": "kubernetes",
            "image": profile.image or self.settings.image or "",
            "namespace": self.settings.namespace,
            "resources": json.dumps(given, sort_keys=True),
        }

    def prune(
        self,
        has_ended: Callable[[str], bool] = lambda _: False,
        on_log: Callable[[str], None] = lambda _: None,
    ) -> list[str]:
        """See `TrainingLauncher.prune`."""
        of = self.settings
        with self._connect().impatient(_PRUNE_SECONDS) as cluster:
            return prune(cluster, of.lease_seconds, of.return_seconds, has_ended, on_log)

    def _follow(self, cluster: Cluster, job: TrainingJob, lease: Lease, logs: LogTail) -> None:
        """Pass on the log lines of the training's pods until we hold the Lease."""
        while not lease.take():
            logs.look(pods_of(cluster, f"{attempt_objects.training_selector(job)},{attempt_objects.INDEX}"))
            logs.deliver(_FOLLOW_SECONDS)

    def _connect(self) -> Cluster:
        return Cluster(self.settings.namespace, self.settings.context, self.settings.patience_seconds)

    def _prune_quietly(self) -> None:
        """Prune; ignore failures, because leftovers of others must not fail this training."""
        with suppress(TrainingFailed):
            self.prune()

    def _require_usable(self, job: TrainingJob, folder: Path, profile: ResourceProfile) -> None:
        name = training_folder_name(job)
        if not self.artifacts.address(name).startswith("s3://"):
            raise BadConfiguration(
                f"pods cannot read {self.artifacts.address(name)}: set ML_ASSETS_ARTIFACTS_URL to "
                "s3://bucket/prefix, or ML_ASSETS_LAUNCHER to local"
            )
        if folder.resolve() != self.artifacts.folder(name).resolve():
            raise BadConfiguration(
                f"{folder} is not the folder of {name}: launch it in {self.artifacts.folder(name)}"
            )
        if (profile.image or self.settings.image) is None:
            raise BadConfiguration(
                "set ML_ASSETS_KUBERNETES_IMAGE, or the pipeline's resources.image, to the image of the workers"
            )
        try:
            ranks_of_a_node(job.settings, profile)
        except ProfileRefused as error:
            raise BadConfiguration(str(error)) from error
        refuse_without_gpus(job.settings, has_gpus=profile.gpus > 0, where="resources.gpus is 0")


@dataclass(frozen=True)
class _LeaderRun:
    """Leadership of a training, from taking its Lease to giving it back."""

    launcher: KubernetesLauncher
    cluster: Cluster
    job: TrainingJob
    profile: ResourceProfile
    lease: Lease
    logs: LogTail
    output: PodsOutput

    def run(self) -> TrainingResult:
        try:
            result = self._attempts()
        except LeaseLost:
            raise
        except (ClusterUnavailable, ArtifactsUnavailable):
            self.lease.stop()  # the pods may still train: the next launcher attaches, or a pruner removes them
            raise
        except BaseException as error:
            self._clean(error)
            raise
        self._clean(None)
        return result

    def _attempts(self) -> TrainingResult:
        lease = self.lease
        plan = AttemptPlan(number=lease.attempt, failures=lease.failures, nodes=self.profile.most_nodes)
        if (result := self._finished()) is not None:  # the previous leader may have finished
            return result
        document = newest(self.cluster, attempt_objects.training_selector(self.job))
        if (
            document is not None and not lease.attempt
        ):  # the previous leader gave the Lease back, and could not remove the Job
            remove(self.cluster, attempt_objects.training_selector(self.job), _CANCEL_GRACE_SECONDS)
            document = None
        if document is not None:
            number = int(document["metadata"]["labels"][attempt_objects.ATTEMPT])
            plan = replace(plan, number=number, nodes=size_of(document))
            self.output.say(f"attached to {document['metadata']['name']}, which was running already")
        while True:
            while document is None:
                self.output.begin()
                plan = plan.then()
                lease.note(attempt=plan.number, failures=plan.failures)
                document = self._start(plan)
            end = self._watch(document, plan)
            if (result := self._finished()) is not None:
                return result
            if end.kind == "done":
                end = AttemptEnd(kind="failed", said="all pods ended with exit code 0 but wrote no result")
            if end.error is not None:
                raise end.error
            if end.kind == "failed" and (error := self.output.failed_twice()) is not None:
                raise error
            plan = plan.ended(end, has_trained=self.output.has_trained)
            most = self.job.settings.max_attempts
            if plan.failures >= most:
                raise AttemptsExhausted(
                    f"{plan.failures} attempts failed, the last attempt because {end.said}. The last lines of "
                    f"{self.output.log_file}:\n{self.output.tail}"
                )
            lease.note(attempt=plan.number, failures=plan.failures)
            pause = pause_after(plan.fruitless)
            self.output.say(
                f"attempt {plan.number} ended: {end.said}; {plan.failures} of {most} failures: resuming from the "
                f"last checkpoint{in_words(pause)}"
            )
            selector = (
                f"{attempt_objects.training_selector(self.job)},{attempt_objects.ATTEMPT}={plan.number}"
            )
            remove(self.cluster, selector, 1)
            if lease.lost.wait(pause):
                raise LeaseLost
            document = None

    def _start(self, plan: AttemptPlan) -> Document | None:
        launcher, job = self.launcher, self.job
        document = start(
            self.cluster,
            attempt_objects.job_manifest(
                job,
                plan.number,
                self.profile,
                launcher.settings,
                nodes=plan.nodes,
                cause=plan.cause,
                folder=launcher.artifacts.address(training_folder_name(job)),
                snapshot=launcher.artifacts.address(snapshot_name(job)),
                s3_endpoint_url=launcher.settings.s3_endpoint_url or launcher.s3_endpoint_url,
            ),
            lambda owner: attempt_objects.service_manifest(job, plan.number, owner),
        )
        if document is not None:
            self.output.say(
                f"started {document['metadata']['name']}: {plan.nodes} pods of {self.profile.cpu} CPU, "
                f"{self.profile.memory}, {self.profile.gpus} GPUs"
            )
        return document

    def _watch(self, document: Document, plan: AttemptPlan) -> AttemptEnd:
        return AttemptWatcher(
            cluster=self.cluster,
            job=document,
            profile=self.profile,
            settings=self.launcher.settings,
            logs=self.logs,
            output=self.output,
            lost=self.lease.lost,
            grow_after=plan.grow_after,
        ).end()

    def _finished(self) -> TrainingResult | None:
        """Return the result, or None. With a result, pass on all its events, also those that the log lost."""
        result = finished(self.launcher.artifacts, self.job)
        if result is not None:
            folder = self.launcher.artifacts.folder(training_folder_name(self.job))
            self.output.tell(read_events(folder))
        with suppress(*([ArtifactsUnavailable] if result is not None else [])):  # the result is here already
            share_events(self.launcher.artifacts, self.job, self.output.events)
        return result

    def _clean(self, why: BaseException | None) -> None:
        """Remove all Jobs, Services, pods and the Lease. `why`: the exception that ends the training, if any.

        A cluster that refuses or does not answer does not change the outcome. A pruner removes the rest.
        """
        self.logs.stop()
        try:
            with self.cluster.impatient(_CLEAN_SECONDS) as cluster:
                if not self.lease.is_ours(cluster):  # another launcher leads the pods now
                    return
                remove(cluster, attempt_objects.training_selector(self.job), _CANCEL_GRACE_SECONDS)
        except (ClusterUnavailable, ClusterRefused) as error:
            said = f"its pods could not be deleted; a launcher or the daemon prunes them later: {error}"
            if why is None:
                self.output.say(said)
            else:
                why.add_note(said)
        self.lease.give_back(_RELEASE_SECONDS)
