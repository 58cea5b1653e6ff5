"""Dagster's instance settings (`dagster.yaml`), for each place where Dagster runs: this machine and a cluster.

Belongs here: each setting once, and the reason where places differ. Not here: writing files. `context.home`
writes one into Dagster's home. `deployment.render` writes that of a cluster, which is a file of the Helm chart; the
chart adds a team's values to it (`ml-assets.dagster` of its `_pod.tpl`).
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
    instance = _everywhere()
    # Runs are processes of this machine: each may train with all its cores.
    instance["concurrency"] = {"runs": {"max_concurrent_runs": 4}}
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
    """Return the settings of Dagster in a team's namespace: a pod for each run, and nothing kept in a pod.

    Without what is a value of the chart: runs at once, and size, place and Secret of their pods.
    """
    instance = _everywhere()
    instance["run_monitoring"] |= {
        # A node may have to fetch the image first.
        "start_timeout_seconds": 600,
        # A run whose pod vanished gets another one, which attaches to the training that still runs: its steps begin
        # again, and find their results. Within ML_ASSETS_KUBERNETES_RETURN_SECONDS nobody prunes its trainers.
        # `RunPods` fails a run whose pods died four times, and does not count those of drained nodes.
        "max_resume_run_attempts": 1000,
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
            "run_k8s_config": _run_pod(),
        },
    }
    return instance


def _everywhere() -> Section:
    """Return the settings of every place."""
    return {
        "telemetry": {"enabled": False},
        # No "join the community" window over the page.
        "nux": {"enabled": False},
        # Dagster's 5 is most of the wait between a click and a run.
        "run_queue": {"dequeue_interval_seconds": 1},
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


def _run_pod() -> Section:
    """Return the pod of a run, in Kubernetes' words, which Dagster accepts as well as its own.

    The chart gives security and tolerations to its other pods, too. The namespace's `restricted` standard asks for the
    security; after `LOST_NODE_SECONDS` a pod leaves a node that does not answer.
    """
    return {
        "pod_spec_config": {
            "automountServiceAccountToken": True,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "runAsGroup": USER,
                "fsGroup": USER,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "tolerations": [
                {
                    "key": f"node.kubernetes.io/{state}",
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": LOST_NODE_SECONDS,
                }
                for state in ("not-ready", "unreachable")
            ],
            "volumes": [{"name": "writable", "emptyDir": {}}],
        },
        "container_config": {
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
            "volumeMounts": [
                {"name": "writable", "mountPath": "/tmp", "subPath": "tmp"},
                {"name": "writable", "mountPath": HOME, "subPath": "home"},
            ],
        },
        "job_spec_config": {"ttlSecondsAfterFinished": 86400},
    }
