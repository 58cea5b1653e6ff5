#!/usr/bin/env bash
# All of T1, T2, T9 and T10 on one GPU in at most ten minutes: benchmarks/gpu/run.sh [part …] [--device cpu]
# Needs Python 3.11 or newer with torch 2.11 or newer and numpy (PYTHON=… picks one), and nothing from outside: packages
# it lacks are installed from the wheels in WHEELS, which `benchmarks/gpu/wheels.sh` collects (about 55 MB).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

python="${PYTHON:-python3}"
wheels="${WHEELS:-build/wheels}"
site="$(mktemp -d)"
trap 'rm -rf "$site"' EXIT

if ! "$python" -c 'import prometheus_client, pyarrow, pydantic, rich, safetensors, torch' 2>/dev/null; then
  if ! compgen -G "$wheels/*.whl" >/dev/null; then
    echo "$python lacks some of prometheus_client, pyarrow, pydantic, rich, safetensors and torch, and $wheels has no wheels." >&2
    echo "Run benchmarks/gpu/wheels.sh on a machine with a package index, and copy the folder to this one." >&2
    exit 1
  fi
  "$python" -m pip install --quiet --no-index --no-deps --no-compile --target "$site" "$wheels"/*.whl
fi
PYTHONPATH="$PWD:$site" PYTHONUNBUFFERED=1 "$python" -m benchmarks.gpu "$@"
