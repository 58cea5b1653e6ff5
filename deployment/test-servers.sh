#!/usr/bin/env bash
# Every test that needs real servers: installs system packages, builds and starts the servers, tests, ends them and
# checks that nothing is left. Called by `make test-servers`; arguments go to pytest. JOBS test processes at
# once, each with its own servers.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python="${VENV:-.venv}/bin/python"
export SERVERS_STATE="$PWD/build/servers-of-tests" # apart from those of `make servers-up`

# Fails if a process, port, mount or folder is left. The servers' logs stay: build/servers-of-tests.log.
down_all() {
  local state
  tail --lines=1000 "$SERVERS_STATE"*/log/*.log >"$SERVERS_STATE.log" || true
  for state in "$SERVERS_STATE" "$SERVERS_STATE"-*; do
    "$python" -m deployment.testbed servers --state "$state" down
  done
}

main() {
  deployment/install-system-packages.sh deployment/system-packages-servers.txt
  trap down_all EXIT
  local began=$SECONDS
  "$python" -m deployment.testbed servers --state "$SERVERS_STATE" up
  printf 'The servers were up after %d s.\n' "$((SECONDS - began))"
  "$python" -m pytest ml_assets_tests/servers -n "${JOBS:-3}" --dist loadscope --no-loadscope-reorder "$@"
  trap - EXIT
  down_all
  echo "Nothing of the servers is left."
}

main "$@"
