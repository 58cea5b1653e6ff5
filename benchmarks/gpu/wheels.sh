#!/usr/bin/env bash
# Downloads the packages that benchmarks/gpu/run.sh needs beside torch into a folder (WHEELS, default build/wheels), for another
# machine's Python: TARGET_PYTHON, default 3.12. Versions and hashes are those of deployment/requirements/dev.txt.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

wheels="${WHEELS:-build/wheels}"
mkdir -p "$wheels"
requirements="$(mktemp)"
trap 'rm -f "$requirements"' EXIT
for name in prometheus-client pyarrow safetensors pydantic pydantic-core annotated-types typing-inspection rich markdown-it-py mdurl pygments; do
  awk -v name="$name" '/^[a-z]/ { keep = index($0, name "==") == 1 } keep' deployment/requirements/dev.txt
done >"$requirements"
"${PYTHON:-.venv/bin/python}" -m pip download --quiet --no-deps --only-binary=:all: --require-hashes \
  --python-version "${TARGET_PYTHON:-3.12}" --implementation cp \
  --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
  --dest "$wheels" --requirement "$requirements"
du -sh "$wheels"
