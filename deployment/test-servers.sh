#!/usr/bin/env bash
# Every test that needs real servers: installs system packages, builds and starts the servers, tests, ends them and
# checks that nothing of them is left. Called by `make test-servers`; arguments go to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python="${VENV:-.venv}/bin/python"
export SERVERS_STATE="$PWD/build/servers-of-tests" # apart from those of `make servers-up`
servers() { "$python" -m deployment.local servers --state "$SERVERS_STATE" "$@"; }

deployment/install-system-packages.sh deployment/system-packages-servers.txt
trap 'servers down' EXIT
began=$SECONDS
servers up
printf 'The servers were up after %d s.\n' "$((SECONDS - began))"
"$python" -m pytest ml_assets_tests/servers "$@"
trap - EXIT
servers down # fails if a process, port, mount or folder is left
echo "Nothing of the servers is left."
