#!/usr/bin/env bash
# The lake's tests on a real lakeFS, through lakefs-sdk instead of lakefs-client. Arguments go to pytest.
# The SDK is in a separate folder, beside the environment: from 1.87 on it is not open source, so none of our packages
# may depend on it. Uses the servers of SERVERS_STATE, or starts its own.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv="${VENV:-.venv}"
requirements=deployment/lakefs-sdk.txt
folder="${ML_ASSETS_BUILD_CACHE:-$HOME/.cache/ml-assets}/lakefs-sdk-$(cksum <"$requirements" | cut -d ' ' -f 1)"
if [ ! -e "$folder/installed" ]; then
  "$venv/bin/uv" pip install -q --python "$venv/bin/python" --target "$folder" --no-deps --require-hashes -r "$requirements"
  touch "$folder/installed"
fi
PYTHONPATH="$folder" LAKEFS_LIBRARY=lakefs_sdk exec "$venv/bin/pytest" ml_assets_tests/servers/lake/test_contract.py \
  ml_assets_tests/servers/lake/test_setup.py "$@"
