"""Dagster's instance settings (`dagster.yaml`), for each place where Dagster runs: this machine and a cluster.

Belongs here: each setting once, and the reason where places differ. Not here: writing files. `context.home`
writes one into Dagster's home. `deployment.render` writes those of the manifests and of Dagster's Helm chart, which are
kept in git.
"""

from typing import Any

from resources.settings import Settings

EVENT_BATCH = "400"
"""Materializations that Dagster stores together (`DAGSTER_EVENT_BATCH_SIZE`). By default it stores each alone."""
DAEMON_SILENCE_SECONDS = 600
"""Seconds after which a silent part of the daemon counts as hung (`DAGSTER_DAEMON_HEARTBEAT_TOLERANCE`)."""
LOST_NODE_SECONDS = 30
"""Seconds for which a pod stays on a node that does not answer. With Kubernetes' 300, a run resumes minutes later."""
USER = 65532
"""User and group of all pods, those of trainings included: a shared volume is writable for each of them."""
HOME = "/var/lib/ml-assets"
"""Home of the project in a container (`ML_ASSETS_HOME`): a folder that it may write, and that ends with the pod."""

Section = dict[str, Any]


def on_this_machine(settings: Settings) -> Section:
    """Return the settings of Dagster on one machine, without secrets: Dagster reads those from its environment."""
    # Runs are processes of this machine: each may train with all its cores.
    instance = _everywhere(most_runs=4)
    # A run is a process, which starts within seconds. Dagster cannot resume it; the next run attaches to the training.
    instance["run_monitoring"] |= {"start_timeout_seconds": 180}
    if settings.dagster_url is not None:
        instance["storage"] = _postgres()
    else:
        # As `sqlite:`, but each event once, in one file, and many at once.
        instance["storage"] = {
            "custom": {
                "module": "ml_assets.dagster_host.storage",
                "class": "OneFileStorage",
                "config": {"base_dir": str(settings.dagster_home)},
            }
        }
    if settings.artifacts_url is not None and settings.artifacts_url.startswith("s3://"):
        bucket, _, prefix = settings.artifacts_url.removeprefix("s3://").strip("/").partition("/")
        instance["compute_logs"] = _step_logs(
            bucket=bucket,
            prefix=f"{prefix}/step-logs".strip("/"),
            local_dir=str(settings.dagster_home / "step-logs"),
            endpoint_url=str(settings.s3_endpoint_url) if settings.s3_endpoint_url else None,
        )
    return instance


def on_a_cluster() -> Section:
    """Return the settings of Dagster in a team's namespace: a pod for each run, and nothing kept in a pod."""
    # Dagster's own default. More runs at once need a larger quota of the namespace.
    instance = _everywhere(most_runs=10)
    instance["run_monitoring"] |= {
        # A node may have to fetch the image first.
        "start_timeout_seconds": 600,
        # A run whose pod vanished gets another one, which attaches to the training that still runs: its steps begin
        # again, and find their results. Within ML_ASSETS_KUBERNETES_RETURN_SECONDS nobody prunes its trainers.
        "max_resume_run_attempts": 3,
    }
    instance["storage"] = _postgres()
    # Values between steps: Dagster's home itself is read-only in a pod.
    instance["local_artifact_storage"] = {
        "module": "dagster._core.storage.root",
        "class": "LocalArtifactStorage",
        "config": {"base_dir": f"{HOME}/dagster"},
    }
    instance["compute_logs"] = _step_logs(
        bucket={"env": "STEP_LOGS_BUCKET"},
        prefix="step-logs",
        local_dir="/tmp/step-logs",
        endpoint_url={"env": "ML_ASSETS_S3_ENDPOINT_URL"},
    )
    instance["run_launcher"] = {
        "module": "ml_assets.dagster_host.run_pods",
        "class": "RunPods",
        "config": {
            "job_namespace": {"env": "ML_ASSETS_KUBERNETES_NAMESPACE"},
            "service_account_name": "run",
            "instance_config_map": "dagster-instance",
            "dagster_home": "/opt/dagster",
            "env_config_maps": ["ml-assets"],
            "env_secrets": ["ml-assets-credentials"],
            "run_k8s_config": _run_pod(),
        },
    }
    return instance


def _everywhere(most_runs: int) -> Section:
    """Return the settings of every place."""
    return {
        "telemetry": {"enabled": False},
        # No "join the community" window over the page.
        "nux": {"enabled": False},
        # Dagster's 5 is most of the wait between a click and a run.
        "run_queue": {"dequeue_interval_seconds": 1},
        "concurrency": {"runs": {"max_concurrent_runs": most_runs}},
        # A run that never starts, or never stops when asked to, is ended.
        "run_monitoring": {"enabled": True, "poll_interval_seconds": 10},
        # Steps repeat transient failures; the launcher owns the attempts of a training.
        "run_retries": {"enabled": False},
        # A sensor that waits for a server holds up no other.
        "schedules": {"use_threads": True, "num_workers": 2},
        "sensors": {"use_threads": True, "num_workers": 2},
    }


def _postgres() -> Section:
    """Return the storage: as `postgres:`, but with kept connections, and a year's planned events at once."""
    return {
        "custom": {
            "module": "ml_assets.dagster_host.postgres_storage",
            "class": "PooledPostgresStorage",
            "config": {"postgres_url": {"env": "ML_ASSETS_DAGSTER_URL"}},
        }
    }


def _step_logs(*, endpoint_url: object, **place: object) -> Section:
    """Return the section for output of steps on S3; `endpoint_url` is None for Amazon's own."""
    return {
        "module": "dagster_aws.s3.compute_log_manager",
        "class": "S3ComputeLogManager",
        "config": {
            **place,
            **({"endpoint_url": endpoint_url} if endpoint_url is not None else {}),
            "skip_empty_files": True,
            "upload_interval": 10,
        },
    }


def pod_security() -> Section:
    """Return the security context of each pod of Dagster, as the namespace's `restricted` standard asks for it."""
    return {
        "run_as_non_root": True,
        "run_as_user": USER,
        "run_as_group": USER,
        "fs_group": USER,
        "fs_group_change_policy": "OnRootMismatch",
        "seccomp_profile": {"type": "RuntimeDefault"},
    }


def lost_node_tolerations() -> list[Section]:
    """Return the tolerations of each pod of Dagster: it leaves a lost node after `LOST_NODE_SECONDS`."""
    return [
        {
            "key": f"node.kubernetes.io/{state}",
            "operator": "Exists",
            "effect": "NoExecute",
            "toleration_seconds": LOST_NODE_SECONDS,
        }
        for state in ("not-ready", "unreachable")
    ]


def _run_pod() -> Section:
    """Return the pod of a run."""
    return {
        "pod_spec_config": {
            "automount_service_account_token": True,
            "security_context": pod_security(),
            "tolerations": lost_node_tolerations(),
            "volumes": [{"name": "writable", "empty_dir": {}}],
        },
        "container_config": {
            "resources": {
                "requests": {"cpu": "500m", "memory": "2Gi"},
                "limits": {"memory": "8Gi"},
            },
            "security_context": {
                "allow_privilege_escalation": False,
                "read_only_root_filesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
            "volume_mounts": [
                {"name": "writable", "mount_path": "/tmp", "sub_path": "tmp"},
                {"name": "writable", "mount_path": HOME, "sub_path": "home"},
            ],
        },
        "job_spec_config": {"ttl_seconds_after_finished": 86400},
    }
