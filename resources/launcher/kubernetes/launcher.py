"""Training on a cluster: its back end, the Lease of the training, its attempts, the removal of everything afterwards.

The back end `job` is here: the launcher that holds the Lease leads the training and makes a Job for each attempt. Other
launchers follow, and take over if it dies. Not here: the back ends `jobset` and `trainjob` (jobset), one attempt
(attempt), files (exchange), the program of the pods (a command to this module).
"""

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from resources.addresses import Address
from resources.artifacts import Artifacts
from resources.job.errors import BadConfiguration, TrainingFailed
from resources.job.events import TrainingEvent, training_folder_name
from resources.job.job import TrainingJob, TrainingResult
from resources.launcher.kubernetes import attempt_objects
from resources.launcher.kubernetes.attempt import newest, pods_of, size_of, start
from resources.launcher.kubernetes.capacity import AttemptPlan
from resources.launcher.kubernetes.classify import AttemptEnd
from resources.launcher.kubernetes.cluster import Cluster, Document
from resources.launcher.kubernetes.exchange import finished, share_inputs, snapshot_name
from resources.launcher.kubernetes.jobset import JobSetRun, prune_jobsets
from resources.launcher.kubernetes.jobset_objects import owner_of
from resources.launcher.kubernetes.lease import Lease, LeaseLost, has_run_out
from resources.launcher.kubernetes.output import LogTail, PodsOutput
from resources.launcher.kubernetes.prune import prune, remove
from resources.launcher.kubernetes.training import CANCEL_GRACE_SECONDS, NO_RESULT, ClusterTraining
from resources.launcher.kubernetes.worker_keys import WorkerKeys, WorkersRole
from resources.launcher.protocol import in_words, nobody_comes_back, pause_after, refuse_without_gpus
from resources.launcher.resource_profile import ProfileRefused, ResourceProfile, ranks_of_a_node
from resources.settings import KubernetesSettings

_FOLLOW_SECONDS = 1.0
_RELEASE_SECONDS = 5.0
"""Time limit of giving the Lease up in seconds. Otherwise the Lease expires."""
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
        comes_back: Callable[[BaseException], bool] = nobody_comes_back,
    ) -> TrainingResult:
        """See `TrainingLauncher.run`. If another launcher leads this job, follow the lines of its pods until it ends.
        If it did not finish, take over and keep the pods that still run.

        Both callbacks run in the caller's thread. If one raises, the pods get time to save and are removed, unless the
        run `comes_back`. If the API server or the artifacts are away, the pods stay, too: they may still train.
        """
        profile = profile or ResourceProfile()
        self._require_usable(job, folder, profile)
        if (result := finished(self.artifacts, job)) is not None:
            return result
        role = self._workers_role(job)
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
            training = ClusterTraining(
                cluster=cluster,
                job=job,
                profile=profile,
                settings=self.settings,
                artifacts=self.artifacts,
                s3_endpoint_url=self.settings.s3_endpoint_url or self.s3_endpoint_url,
                logs=logs,
                output=output,
                keys=role and self._keys(cluster, job, role),
                comes_back=comes_back,
            )
            try:
                if (back_end := self._back_end(training)) != "job":
                    return JobSetRun(training, back_end, run_id).run()
                while True:
                    self._follow(cluster, job, lease, logs)
                    with suppress(LeaseLost):
                        return _LeaderRun(training, lease).run()
            finally:
                logs.stop()
                if training.keys is not None:
                    training.keys.stop()

    def _back_end(self, training: ClusterTraining) -> attempt_objects.BackEnd:
        """Return the back end of the training. If it runs, it keeps that in which it began: two would train at once.

        A training with a range of nodes, or with other nodes in its last attempts, is never a JobSet, whose pods stay
        as they are.
        """
        cluster, profile, wanted = training.cluster, training.profile, self.settings.backend
        name = attempt_objects.training_name(training.job)
        # With those that are being deleted: a JobSet that restarts its pods has no other for as long as they save.
        jobs = cluster.list("job", training.selector)
        if any(
            owner_of(one, "JobSet") is None and not one["metadata"].get("deletionTimestamp") for one in jobs
        ):
            return "job"
        is_job = wanted == "job" or profile.least_nodes < profile.most_nodes or profile.on_demand_last
        of_jobset = any(owner_of(one, "JobSet") is not None for one in jobs)
        if (of_jobset or not is_job) and (jobset := cluster.get("jobset", name)) is not None:
            if owner_of(jobset, "TrainJob") is None:
                return "jobset"
            cluster.get("trainjob", name)  # without the right to it, end before anything is removed
            return "trainjob"
        if is_job:
            return "job"
        lease = cluster.get("lease", name)
        return wanted if lease is None or has_run_out(lease, cluster.now()) else "job"

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
            pruned = prune(cluster, of.lease_seconds, of.return_seconds, has_ended, on_log)
            if of.backend == "trainjob":
                pruned += prune_jobsets(cluster, "trainjob", has_ended, on_log)
            if of.backend != "job":  # with TrainJobs, too: a team may have had JobSets before
                pruned += prune_jobsets(cluster, "jobset", has_ended, on_log)
            return pruned

    def _follow(self, cluster: Cluster, job: TrainingJob, lease: Lease, logs: LogTail) -> None:
        """Pass on the log lines of the training's pods until we hold the Lease."""
        while not lease.take():
            logs.look(pods_of(cluster, f"{attempt_objects.training_selector(job)},{attempt_objects.INDEX}"))
            logs.deliver(_FOLLOW_SECONDS)

    def _workers_role(self, job: TrainingJob) -> WorkersRole | None:
        """Return the role to assume for the workers; None without one. Raise `BadConfiguration`."""
        if self.settings.s3_role is None:
            return None
        return WorkersRole(
            arn=self.settings.s3_role,
            seconds=self.settings.s3_role_seconds,
            endpoint_url=self.s3_endpoint_url,
            written=[self.artifacts.address(training_folder_name(job))],
            read=[self.artifacts.address(snapshot_name(job))],
        )

    def _keys(self, cluster: Cluster, job: TrainingJob, role: WorkersRole) -> WorkerKeys:
        name, labels = attempt_objects.training_name(job), attempt_objects.training_labels(job)
        return WorkerKeys(cluster, role, name, labels, renew_seconds=role.seconds / 2)

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
        if profile.on_demand_last and not self.settings.on_demand:
            raise BadConfiguration(
                "resources.on_demand_last needs the labels of the nodes that the cloud does not take away: set "
                """ML_ASSETS_KUBERNETES_ON_DEMAND, for instance to {"karpenter.sh/capacity-type": "on-demand"}, or """
                "leave on_demand_last out"
            )
        try:
            ranks_of_a_node(job.settings, profile)
        except ProfileRefused as error:
            raise BadConfiguration(str(error)) from error
        refuse_without_gpus(job.settings, has_gpus=profile.gpus > 0, where="resources.gpus is 0")


@dataclass(frozen=True)
class _LeaderRun:
    """Leadership of a training, from taking its Lease to giving it back."""

    training: ClusterTraining
    lease: Lease

    def run(self) -> TrainingResult:
        try:
            result = self._attempts()
        except LeaseLost:
            raise
        except BaseException as error:
            if self.training.goes_on_after(error):
                # The next launcher attaches, or a pruner removes the pods.
                self.lease.hand_over(_RELEASE_SECONDS)
            else:
                self._clean(error)
            raise
        self._clean(None)
        return result

    def _attempts(self) -> TrainingResult:
        training, lease = self.training, self.lease
        cluster, output = training.cluster, training.output
        plan = AttemptPlan(number=lease.attempt, failures=lease.failures, nodes=training.profile.most_nodes)
        if (result := training.finished()) is not None:  # the previous leader may have finished
            return result
        document = newest(cluster, training.selector)
        if (
            document is not None and not lease.attempt
        ):  # the previous leader gave the Lease back, and could not remove the Job
            remove(cluster, training.selector, CANCEL_GRACE_SECONDS)
            document = None
        if document is not None:
            number = int(document["metadata"]["labels"][attempt_objects.ATTEMPT])
            # The next attempt asks the queue for all pods again.
            nodes = plan.nodes if attempt_objects.may_be_smaller(document) else size_of(document)
            plan = replace(plan, number=number, nodes=nodes)
            output.say(f"attached to {document['metadata']['name']}, which was running already")
        while True:
            while document is None:
                output.begin()
                plan = plan.then()
                lease.note(attempt=plan.number, failures=plan.failures)
                document = self._start(plan)
            training.equip("job", document)
            end = training.watcher(document, lease.lost, grow_after=plan.grow_after).end()
            if (result := training.finished()) is not None:
                return result
            if end.kind == "done":
                end = AttemptEnd(kind="failed", said=NO_RESULT)
            if end.error is not None:
                raise end.error
            if end.kind == "failed" and (error := output.failed_twice()) is not None:
                raise error
            plan = plan.ended(end, has_trained=output.has_trained)
            most = training.job.settings.max_attempts
            if plan.failures >= most:
                raise training.exhausted(plan.failures, f"the last attempt because {end.said}")
            lease.note(attempt=plan.number, failures=plan.failures)
            pause = pause_after(plan.fruitless)
            output.say(
                f"attempt {plan.number} ended: {end.said}; {plan.failures} of {most} failures: resuming from the "
                f"last checkpoint{in_words(pause)}"
            )
            remove(cluster, f"{training.selector},{attempt_objects.ATTEMPT}={plan.number}", 1)
            if lease.lost.wait(pause):
                raise LeaseLost
            document = None

    def _start(self, plan: AttemptPlan) -> Document | None:
        of, profile = self.training, self.training.profile_of(plan.number)
        document = start(
            of.cluster,
            attempt_objects.job_manifest(
                of.job,
                plan.number,
                profile,
                of.settings,
                nodes=plan.nodes,
                cause=plan.cause,
                folder=of.folder,
                snapshot=of.snapshot,
                s3_endpoint_url=of.s3_endpoint_url,
            ),
            lambda owner: attempt_objects.service_manifest(of.job, plan.number, owner),
        )
        if document is not None:
            labels = ", ".join(f"{name}={value}" for name, value in profile.node_selector.items())
            where = f", on nodes with {labels}" if profile is not of.profile else ""
            of.output.say(f"started {document['metadata']['name']}: {profile.in_words(plan.nodes)}{where}")
        return document

    def _clean(self, why: BaseException | None) -> None:
        """Remove all Jobs, Services, pods and the Lease, unless another launcher leads the pods now."""
        self.training.clean(why, is_ours=self.lease.is_ours)
        self.lease.give_back(_RELEASE_SECONDS)
