#!/usr/bin/env bash
# Every test that needs a cluster: installs system packages, builds and starts the servers and a cluster of two nodes,
# tests, ends them and checks that nothing is left. Called by `make test-cluster`; arguments go to pytest. JOBS
# test processes at once share them. TESTS is the folder: `make test-queues` has another one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python="${VENV:-.venv}/bin/python"
# Apart from those of `make servers-up` and `make cluster-up`; only one cluster can have the name and the network.
export SERVERS_STATE="$PWD/build/servers-of-tests" CLUSTER_STATE="$PWD/build/cluster-of-tests"
servers() { "$python" -m deployment.testbed servers --state "$SERVERS_STATE" "$@"; }
cluster() { "$python" -m deployment.testbed cluster "$@"; }

deployment/install-system-packages.sh deployment/system-packages{,-servers,-cluster}.txt
trap 'cluster down; servers down' EXIT
began=$SECONDS
servers up
cluster up
printf 'Servers and cluster were up after %d s.\n' "$((SECONDS - began))"
"$python" -m pytest "${TESTS:-ml_assets_tests/cluster}" -n "${JOBS:-3}" --dist loadscope --no-loadscope-reorder "$@"
trap - EXIT
cluster down # both commands fail if a process, mount, link, cgroup or folder is left
servers down
echo "Nothing of the cluster and the servers is left."
