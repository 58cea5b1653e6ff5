"""Requests that fail for a passing reason are sent again; a Lease is known by its holder, whatever answer is lost."""

import time
from pathlib import Path

import pytest

from ml_assets_tests.resources.launcher.api_server import NAMESPACE, ApiServer
from resources.job.errors import ClusterRefused, ClusterUnavailable
from resources.launcher.kubernetes.cluster import Cluster
from resources.launcher.kubernetes.lease import Lease

NAME, LABELS = "train-abc", {"app.kubernetes.io/managed-by": "ml-assets", "ml-assets/training": "abc"}
POD = {"metadata": {"name": "p", "labels": LABELS}}


LEASE_SECONDS = 20


def lease_of(cluster: Cluster, run_id: str = "") -> Lease:
    return Lease(cluster, NAME, LABELS, LEASE_SECONDS, run_id)


@pytest.mark.parametrize("status", [401, 408, 410, 429, 500, 503])
def test_a_passing_refusal_is_asked_again(api: ApiServer, status: int) -> None:
    api.put("pods", POD)
    cluster = Cluster(NAMESPACE, patience_seconds=20)
    api.trouble("GET", "/pods", status, times=2)
    assert [one["metadata"]["name"] for one in cluster.list("pod")] == ["p"]
    assert api.troubles[0].times == 0


@pytest.mark.parametrize("status", [408, 410, 503])
def test_a_passing_refusal_is_asked_again_for_as_long_as_there_is_patience(
    api: ApiServer, status: int
) -> None:
    cluster = Cluster(NAMESPACE, patience_seconds=0.3)
    api.trouble("GET", "/pods", status, times=999)
    with pytest.raises(ClusterUnavailable, match=rf"0\.3 s \(trouble {status}\)"):
        cluster.list("pod")


def test_a_token_that_was_replaced_is_read_again(api: ApiServer, tmp_path: Path) -> None:
    api.put("pods", POD)
    cluster = Cluster(NAMESPACE, patience_seconds=20)
    assert cluster.list("pod")
    api.token = "second"
    api.kubeconfig(tmp_path)
    assert cluster.list("pod")
    assert len(api.requests) == 2


def test_an_expired_token_is_an_outage_and_an_unknown_one_a_refusal(api: ApiServer) -> None:
    """Pods of a training whose launcher is not known any more may be well."""
    known, stranger = (Cluster(NAMESPACE, patience_seconds=0.3) for _ in range(2))
    known.list("pod")
    api.token = "second"
    with pytest.raises(ClusterUnavailable, match=r"credentials.*0\.3 s.*check the credentials"):
        known.list("pod")
    with pytest.raises(ClusterRefused, match="check the kubeconfig's credentials"):
        stranger.list("pod")


def test_a_deletion_of_many_whose_place_was_forgotten_begins_anew(api: ApiServer) -> None:
    for number in range(250):
        api.put("pods", {"metadata": {"name": f"p{number}", "labels": LABELS}})
    api.trouble("DELETE", "continue=the-rest", 410)
    Cluster(NAMESPACE, patience_seconds=20).delete_pods("ml-assets/training=abc", 1)
    assert api.names("pods") == []
    assert api.troubles[0].times == 0


def test_a_lease_whose_creation_was_not_answered_is_ours(api: ApiServer) -> None:
    lease = lease_of(Cluster(NAMESPACE, patience_seconds=20))
    api.trouble("POST", "/leases")
    began = time.monotonic()
    assert lease.take()
    assert time.monotonic() - began < LEASE_SECONDS  # not when it ran out
    lease.note(attempt=1, failures=0)
    lease.give_back(5)
    assert api.names("leases") == []


def test_a_lease_taken_over_without_an_answer_is_ours(api: ApiServer) -> None:
    cluster = Cluster(NAMESPACE, patience_seconds=20)
    spec = {"holderIdentity": "dead", "leaseDurationSeconds": 20, "renewTime": "2026-01-01T00:00:00.0Z"}
    annotations = {"ml-assets/attempt": "3", "ml-assets/failures": "1", "ml-assets/run": "old"}
    api.put(
        "leases", {"metadata": {"name": NAME, "labels": LABELS, "annotations": annotations}, "spec": spec}
    )
    lease = lease_of(cluster, "new")
    api.trouble("PUT", "/leases")
    assert lease.take()
    assert (lease.attempt, lease.failures) == (3, 1)
    assert api.objects["leases", NAME]["metadata"]["annotations"]["ml-assets/run"] == "new"
    lease.give_back(5)


def test_a_rival_that_comes_first_is_no_lost_answer(api: ApiServer) -> None:
    cluster = Cluster(NAMESPACE, patience_seconds=20)
    first, second = lease_of(cluster), lease_of(cluster)
    assert first.take()
    assert not second.take()
    first.give_back(5)
    assert second.take()
    second.give_back(5)


@pytest.mark.parametrize("status", [403, 503])
def test_a_lease_that_may_not_be_removed_is_left_to_run_out(api: ApiServer, status: int) -> None:
    lease = lease_of(Cluster(NAMESPACE, patience_seconds=20))
    assert lease.take()
    api.trouble("DELETE", "/leases", status, times=999)
    lease.give_back(0.2)
    assert api.names("leases") == [NAME]


def test_a_lease_that_is_handed_over_is_taken_at_once(api: ApiServer) -> None:
    """The next launcher, after a drain, does not wait for it to run out, and knows the attempts."""
    cluster = Cluster(NAMESPACE, patience_seconds=20)
    first, second = lease_of(cluster, "run"), lease_of(cluster, "run")
    assert first.take()
    first.note(attempt=2, failures=1)
    assert not second.take()
    began = time.monotonic()
    first.hand_over(5)
    while not second.take():
        time.sleep(0.1)
    assert time.monotonic() - began < LEASE_SECONDS / 4
    assert (second.attempt, second.failures) == (2, 1)
    second.give_back(5)


def test_a_lease_that_cannot_be_handed_over_runs_out(api: ApiServer) -> None:
    lease = lease_of(Cluster(NAMESPACE, patience_seconds=20))
    assert lease.take()
    api.trouble("PUT", "/leases", 503, times=999)
    lease.hand_over(0.2)
    assert api.names("leases") == [NAME]
