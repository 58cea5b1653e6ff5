#!/usr/bin/env bash
# Installs the locked packages and runs the tests on every supported Python of this machine, each in its own
# environment under build/. Called by `make test-pythons`, for a nightly run; PYTHONS=… names other interpreters.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

found=0
for python in ${PYTHONS:-python3.11 python3.12 python3.13}; do
  if ! "$python" --version >/dev/null 2>&1; then
    echo "$python: not on this machine, not tested."
    continue
  fi
  found=$((found + 1))
  venv="build/venvs/$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
  PYTHON="$python" VENV="$venv" deployment/setup.sh
  echo "== $("$venv/bin/python" --version)"
  "$venv/bin/dg" check defs
  "$venv/bin/pytest" -n "${JOBS:-2}" --dist loadscope --no-loadscope-reorder -m "not chaos" \
    ml_assets_tests ml_assets_tests/tour --deselect ml_assets_tests/test_architecture.py
done

if [ "$found" -eq 0 ]; then
  echo "This machine has none of the interpreters; name one with PYTHONS=…" >&2
  exit 1
fi
