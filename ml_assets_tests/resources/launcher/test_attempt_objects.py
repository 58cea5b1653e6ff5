"""Manifests of a profile and a job, and the launcher's reading of a queue's records."""

import json
from typing import Any

import pytest

from ml_assets_tests.resources.launcher.scripted_jobs import job_of
from resources.addresses import Address
from resources.job.errors import Unschedulable
from resources.job.training_settings import Parallel, TrainingSettings
from resources.launcher.kubernetes.attempt_objects import (
    CONFIG,
    KEYS_FOLDER,
    QueuePosition,
    job_manifest,
    keys_secret_name,
    may_be_smaller,
    service_manifest,
    why_not_admitted,
)
from resources.launcher.kubernetes.worker_keys import WorkersRole
from resources.launcher.resource_profile import (
    ProfileRefused,
    ResourceProfile,
    bytes_of,
    changes_of,
    ranks_of_a_node,
)
from resources.settings import KubernetesSettings, Mount

JOB = job_of("done")
NAME = f"train-{JOB.fingerprint[:12]}-3"


def manifest_of(profile: ResourceProfile, nodes: int = 1, **settings: Any) -> dict[str, Any]:
    return job_manifest(
        JOB,
        3,
        profile,
        KubernetesSettings(image="trainer:1", **settings),
        nodes=nodes,
        cause="a node was lost",
        folder="s3://b/p/training/small/x",
        snapshot="s3://b/p/snapshots/y",
        s3_endpoint_url=Address("http://s3:9000"),
    )


def pod_spec(profile: ResourceProfile, **settings: Any) -> dict[str, Any]:
    return manifest_of(profile, **settings)["spec"]["template"]["spec"]


def environment(profile: ResourceProfile, **settings: Any) -> dict[str, Any]:
    (container,) = pod_spec(profile, **settings)["containers"]
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}


def test_a_job_is_one_attempt_of_fixed_size_named_by_the_fingerprint() -> None:
    job = manifest_of(ResourceProfile(nodes=2, deadline_minutes=1.5), nodes=2)
    assert job["metadata"]["name"] == NAME
    assert job["metadata"]["labels"]["ml-assets/training"] == JOB.fingerprint[:12]
    spec = job["spec"]
    assert (spec["completions"], spec["parallelism"], spec["backoffLimit"]) == (2, 2, 0)
    assert spec["podReplacementPolicy"] == "Failed"
    assert spec["activeDeadlineSeconds"] == 90


def test_a_role_replaces_the_buckets_keys_by_a_file_of_keys() -> None:
    role = {"s3_role": "arn:aws:iam::123456789012:role/workers"}
    told = environment(ResourceProfile(), **role)
    assert not {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"} & told.keys()
    assert told["AWS_CONFIG_FILE"] == f"{KEYS_FOLDER}/{CONFIG}"
    spec = pod_spec(ResourceProfile(), **role)
    (container,) = spec["containers"]
    [mount] = [one for one in container["volumeMounts"] if one["mountPath"] == KEYS_FOLDER]
    [volume] = [one for one in spec["volumes"] if one["name"] == mount["name"]]
    assert volume["secret"]["secretName"] == keys_secret_name(NAME)
    assert mount["readOnly"] is True
    assert "AWS_CONFIG_FILE" not in environment(ResourceProfile())


def test_a_declared_variable_stands_once_and_counts_before_the_secret() -> None:
    """Jobs take a variable twice; JobSets are refused."""
    declared = {"AWS_DEFAULT_REGION": "eu-central-1", "AWS_SESSION_TOKEN": "own"}
    (container,) = pod_spec(ResourceProfile(env=declared))["containers"]
    found = [one for one in container["env"] if one["name"] in declared]
    assert found == [{"name": name, "value": value} for name, value in declared.items()]


@pytest.mark.parametrize("partition", ["aws", "aws-us-gov"])
def test_keys_of_workers_reach_two_folders_alone(partition: str) -> None:
    role = WorkersRole(
        arn=f"arn:{partition}:iam::123456789012:role/workers",
        seconds=3600,
        endpoint_url=None,
        written=["s3://b/p/training/small/x"],
        read=["s3://b/p/snapshots/y"],
    )
    of = f"arn:{partition}:s3:::b"
    both = [f"{of}/p/training/small/x/*", f"{of}/p/snapshots/y/*"]
    allowed = {
        action: (one["Resource"], one.get("Condition"))
        for one in json.loads(role.policy())["Statement"]
        for action in one["Action"]
    }
    assert allowed.pop("s3:GetObject") == (both, None)
    listed = {"StringLike": {"s3:prefix": ["p/training/small/x/*", "p/snapshots/y/*"]}}
    assert allowed.pop("s3:ListBucket") == ([of], listed)
    assert allowed.pop("s3:ListBucketMultipartUploads") == ([of], None)
    assert {tuple(resources) for resources, _ in allowed.values()} == {(both[0],)}
    assert len(role.policy()) < 2048, "the longest policy that stores take"


def test_pods_get_addresses_and_their_keys_by_reference_only() -> None:
    told = environment(ResourceProfile(nodes=2), nodes=2, env={"PYTHONPATH": "/opt"})
    assert told["TRAINING_FOLDER"] == "s3://b/p/training/small/x"
    assert told["TRAINING_SNAPSHOT"] == "s3://b/p/snapshots/y"
    assert (told["TRAINING_NODES"], told["TRAINING_RANKS"], told["TRAINING_ATTEMPT"]) == ("2", "1", "3")
    assert told["TRAINING_CAUSE"] == "a node was lost"
    assert told["MASTER_ADDR"] == f"{NAME}-0.{NAME}"
    assert told["PYTHONPATH"] == "/opt"
    assert told["AWS_ENDPOINT_URL"] == "http://s3:9000"
    assert told["AWS_SECRET_ACCESS_KEY"] == {
        "secretKeyRef": {"name": "ml-assets-s3", "key": "AWS_SECRET_ACCESS_KEY"}
    }


@pytest.mark.parametrize("by", ["pipeline", "platform"])
def test_keys_are_optional_for_pods_that_a_cloud_may_know(by: str) -> None:
    account = {"service_account": "trainer"}
    profile, changes = (ResourceProfile(**account), {}) if by == "pipeline" else (ResourceProfile(), account)
    assert pod_spec(profile, **changes)["serviceAccountName"] == "trainer"
    told = environment(profile, **changes)
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        assert told[key] == {"secretKeyRef": {"name": "ml-assets-s3", "key": key, "optional": True}}


def test_pods_are_told_how_many_shards_may_lie_there_at_once() -> None:
    assert "TRAINING_SHARD_CACHE" not in environment(ResourceProfile())
    told = environment(ResourceProfile(scratch="10Gi", shard_cache="4Gi"))
    assert told["TRAINING_SHARD_CACHE"] == str(4 * 2**30)
    with pytest.raises(ProfileRefused, match=r"shard_cache 20Gi .*scratch 10Gi"):
        ResourceProfile(scratch="10Gi").changed({"shard_cache": "20Gi"})


def test_pods_have_no_rights_no_token_and_only_scratch_to_write() -> None:
    spec = pod_spec(ResourceProfile())
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    (container,) = spec["containers"]
    security = container["securityContext"]
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    writable = [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
    assert writable == ["/scratch", "/tmp", "/dev/shm"]


def test_what_a_pod_writes_is_reserved_and_bounded() -> None:
    spec = pod_spec(ResourceProfile(scratch="3Gi"))
    (container,) = spec["containers"]
    amounts = container["resources"]
    disk = amounts["requests"]["ephemeral-storage"]
    assert disk == amounts["limits"]["ephemeral-storage"]
    limits = {one["name"]: one["emptyDir"]["sizeLimit"] for one in spec["volumes"]}
    assert limits == {"scratch": "3Gi", "tmp": "3Gi", "shm": "256Mi"}
    written = [mount for mount in container["volumeMounts"] if not mount.get("readOnly")]
    assert {mount["name"] for mount in written} == limits.keys()
    assert 0 < int(disk) - bytes_of("3Gi") < bytes_of("1Gi")  # its log


def test_a_profile_says_everything_a_pod_may_need() -> None:
    profile = ResourceProfile.model_validate(
        {
            "image": "trees:1",
            "cpu": 2,
            "memory": "8Gi",
            "gpus": 2,
            "shared_memory": "1Gi",
            "spread": "required",
            "node_selector": {"zone": "a"},
            "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "priority_class": "high",
            "env_from_secrets": ["hub"],
            "pull_secrets": ["registry"],
            "service_account": "trainer",
            "volumes": [
                {"mount_path": "/cache", "claim": "cache", "read_only": False},
                {"mount_path": "/keys", "secret": "keys", "sub_path": "k"},
            ],
            "labels": {"cost-center": "7"},
        }
    )
    job = manifest_of(profile, mounts=(Mount(host_path="/env", mount_path="/opt/env"),))
    spec = job["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["image"] == "trees:1"
    disk = str(20 * 2**30 + 2**28)  # of scratch, and of logs
    assert container["resources"] == {
        "requests": {"cpu": "2", "memory": "8Gi", "nvidia.com/gpu": "2", "ephemeral-storage": disk},
        "limits": {"memory": "8Gi", "nvidia.com/gpu": "2", "ephemeral-storage": disk},
    }
    assert container["envFrom"] == [{"secretRef": {"name": "hub"}}]
    assert spec["volumes"][2] == {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}
    assert [(mount["mountPath"], mount["readOnly"]) for mount in container["volumeMounts"][3:]] == [
        ("/opt/env", True),
        ("/cache", False),
        ("/keys", True),
    ]
    assert spec["volumes"][4]["persistentVolumeClaim"] == {"claimName": "cache", "readOnly": False}
    assert spec["tolerations"][0] == {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}
    assert {one["tolerationSeconds"] for one in spec["tolerations"][1:]} == {10}
    assert spec["topologySpreadConstraints"][0]["whenUnsatisfiable"] == "DoNotSchedule"
    assert (spec["nodeSelector"], spec["priorityClassName"]) == ({"zone": "a"}, "high")
    assert (spec["serviceAccountName"], spec["imagePullSecrets"]) == ("trainer", [{"name": "registry"}])
    for labels in (job["metadata"]["labels"], job["spec"]["template"]["metadata"]["labels"]):
        assert labels["cost-center"] == "7"


def test_a_queue_starts_the_pods_all_at_once_and_nobody_else_does() -> None:
    job = manifest_of(ResourceProfile(queue="team-a"))
    assert job["spec"]["suspend"] is True
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    # The Job goes through the queue, not each pod, nor what looks for room beside them.
    assert "kueue.x-k8s.io/queue-name" not in job["spec"]["template"]["metadata"]["labels"]
    assert "suspend" not in manifest_of(ResourceProfile())["spec"]


def test_a_service_goes_with_its_job() -> None:
    service = service_manifest(JOB, 3, {"metadata": {"name": "n", "uid": "u"}})
    assert service["metadata"]["ownerReferences"][0]["uid"] == "u"
    labels = manifest_of(ResourceProfile())["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert service["spec"]["clusterIP"] == "None"


def test_changes_replace_fields_and_are_refused_by_name() -> None:
    profile = ResourceProfile(memory="1Gi")
    assert profile.changed(changes_of("memory=8Gi, nodes=2")).memory == "8Gi"
    assert profile.changed(changes_of('{"node_selector": {"zone": "a"}}')).node_selector == {"zone": "a"}
    assert profile.changed(changes_of("")) == profile
    with pytest.raises(ProfileRefused, match=r"key 'ram'; .*: cpu, deadline_minutes"):
        profile.changed({"ram": "8Gi"})
    with pytest.raises(ProfileRefused, match=r"memory: .* not 'lots'"):
        profile.changed({"memory": "lots"})
    with pytest.raises(ProfileRefused, match="'memory' has no value"):
        changes_of("memory")
    with pytest.raises(ProfileRefused, match="valid JSON object"):
        changes_of("{nodes: 2")


def test_nodes_are_a_number_or_a_range() -> None:
    fixed, elastic = (
        ResourceProfile().changed({"nodes": "2"}),
        ResourceProfile().changed(changes_of('{"nodes": {"min": 2, "max": 4}}')),
    )
    assert (fixed.least_nodes, fixed.most_nodes) == (2, 2)
    assert (elastic.least_nodes, elastic.most_nodes) == (2, 4)
    for nodes, said in (
        (0, "greater than or equal to 1, not 0"),
        ({"min": 3, "max": 2}, "nodes.max 2 is less than nodes.min 3: swap them"),
        ({"min": 3}, "max: Field required"),
    ):
        with pytest.raises(ProfileRefused, match=said):
            fixed.changed({"nodes": nodes})


def test_pods_that_may_be_missing_hold_whole_copies_of_the_model() -> None:
    elastic = ResourceProfile.model_validate({"nodes": {"min": 1, "max": 2}})
    cut = TrainingSettings(workers=4, parallel=Parallel(tensor=2))
    assert ranks_of_a_node(cut, elastic) == 2
    wider = TrainingSettings(workers=4, parallel=Parallel(tensor=4))
    assert ranks_of_a_node(wider, ResourceProfile(nodes=2)) == 2
    with pytest.raises(ProfileRefused, match=r"4 workers,.*= 2;.*8 workers"):
        ranks_of_a_node(wider, elastic)


def test_a_pod_has_as_many_workers_whether_others_are_missing_or_not() -> None:
    elastic = ResourceProfile.model_validate({"nodes": {"min": 1, "max": 2}})
    assert {environment(elastic, nodes=nodes)["TRAINING_RANKS"] for nodes in (1, 2)} == {"1"}
    assert manifest_of(elastic, nodes=1)["spec"]["completions"] == 1


def test_a_queue_may_admit_an_elastic_training_with_fewer_pods() -> None:
    """The pods then wait for their number, which no manifest knows."""
    elastic = ResourceProfile.model_validate({"nodes": {"min": 1, "max": 2}, "queue": "team-a"})
    job = manifest_of(elastic, nodes=2)
    told = job["metadata"]["annotations"]
    assert told["kueue.x-k8s.io/job-min-parallelism"] == "1"
    assert told["kueue.x-k8s.io/job-completions-equal-parallelism"] == "true"
    (container,) = job["spec"]["template"]["spec"]["containers"]
    names = {one["name"]: one.get("valueFrom") for one in container["env"]}
    assert "TRAINING_NODES" not in names
    assert names["TRAINING_POD"] == {"fieldRef": {"fieldPath": "metadata.uid"}}
    assert may_be_smaller(job)
    for fixed in (manifest_of(elastic, nodes=1), manifest_of(elastic.changed({"queue": None}), nodes=2)):
        assert not may_be_smaller(fixed)


def test_a_volume_has_one_source() -> None:
    with pytest.raises(ProfileRefused, match="claim, secret, config_map, host_path"):
        ResourceProfile().changed({"volumes": [{"mount_path": "/a", "claim": "a", "secret": "b"}]})


def test_quantities_are_bytes() -> None:
    assert [bytes_of(text) for text in ("1", "2k", "1.5Gi", "64Mi")] == [1, 2000, 1610612736, 67108864]


def workload(*conditions: dict[str, Any]) -> dict[str, Any]:
    """Return a Workload as Kueue 0.15 stores it."""
    return {"metadata": {"name": "job-train-abc-1-x"}, "status": {"conditions": list(conditions)}}


def condition(kind: str, status: str, reason: str, message: str) -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def unreserved(message: str, reason: str = "Pending") -> dict[str, Any]:
    return condition("QuotaReserved", "False", reason, message)


FULL = (
    "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor all, 1 more needed"
)
TOO_LARGE = (
    "couldn't assign flavors to pod set main: insufficient quota for cpu in flavor all, request > maximum capacity "
    "(9 > 2)"
)


def test_behind_others_a_training_waits_for_ever_and_says_for_what() -> None:
    place = QueuePosition.of([workload(unreserved(FULL))])
    assert place.waits_for == FULL
    assert why_not_admitted(place, "team-a") is None
    assert why_not_admitted(QueuePosition.of([workload()]), "team-a") is None, "it just came"


@pytest.mark.parametrize(
    ("place", "said"),
    [
        pytest.param(
            QueuePosition.of([]), "install Kueue 0.15 or newer.*leave out resources.queue, team-a", id="none"
        ),
        pytest.param(
            QueuePosition.of([workload(unreserved("LocalQueue team-a doesn't exist", "Inadmissible"))]),
            "queue team-a never admits the training: LocalQueue team-a doesn't exist. Correct resources.queue",
            id="missing",
        ),
        pytest.param(
            QueuePosition.of([workload(unreserved(TOO_LARGE))]),
            r"maximum capacity \(9 > 2\). Correct resources.queue, request less",
            id="too large",
        ),
    ],
)
def test_what_no_wait_will_start_is_refused_with_what_helps(place: QueuePosition, said: str) -> None:
    with pytest.raises(Unschedulable, match=said):
        raise why_not_admitted(place, "team-a") or AssertionError


@pytest.mark.parametrize(
    ("asked", "most", "hopeless"),
    [
        ("400m", "300m", False),
        ("4", "1", True),
        ("8Gi", "4Gi", False),
        ("8Gi", "3Gi", True),
        ("?", "1", True),
    ],
)
def test_a_queue_too_small_for_all_pods_may_have_room_for_the_least(
    asked: str, most: str, hopeless: bool
) -> None:
    """Kueue's message is about all pods; the least is half of them."""
    message = f"requests (0) + current podset request ({asked}) > maximum capacity ({most})"
    workloads = [workload(unreserved(message))]
    assert QueuePosition.of(workloads, least_share=0.5).is_hopeless is hopeless
    assert QueuePosition.of(workloads).is_hopeless


def test_who_was_let_through_waits_for_nothing() -> None:
    place = QueuePosition.of(
        [workload(condition("QuotaReserved", "True", "QuotaReserved", "Quota reserved in q"))]
    )
    assert (place.waits_for, place.given_up_for) == ("", "")


def test_who_lost_its_place_is_told_why() -> None:
    why = "Preempted to accommodate a workload (UID: 1, JobUID: 2) due to prioritization in the ClusterQueue"
    place = QueuePosition.of([workload(condition("Evicted", "True", "Preempted", why))])
    assert place.given_up_for.startswith("Preempted to accommodate")
    again = condition("Evicted", "False", "QuotaReserved", f"Previously: {why}")
    assert QueuePosition.of([workload(again)]).given_up_for == why, "the queue had room for fewer pods"
