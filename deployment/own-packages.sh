#!/usr/bin/env bash
# Installs the packages of requirements-own.txt into VENV beside the locked ones, whose versions stay.
# Called by setup.sh after it synchronised VENV with the lock, which removes packages that the lock does not name.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv="${1:?give the virtual environment}"
own="${2:-requirements-own.txt}"
[ -f "$own" ] || exit 0
echo "Installing the packages of $own into $venv."
"${UV:-$venv/bin/uv}" pip install --quiet --python "$venv/bin/python" --constraint deployment/requirements/dev.txt --requirement "$own" || {
  echo "$own does not fit the locked packages, see above: change its line. None of its packages was installed." >&2
  exit 1
}
