#!/usr/bin/env bash
# Writes the typed client of the REST API, clients/python, anew from the API's OpenAPI document. The generator
# (openapi-python-client, MIT) has an environment of its own: its packages are no dependencies of this project.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly GENERATOR='openapi-python-client==0.29.1'
readonly ENVIRONMENT="$PWD/build/client-generator"

main() {
  local python="${VENV:-.venv}/bin/python" document=clients/python/openapi.json
  mkdir -p clients/python
  "$python" -m deployment.client "$document"
  if ! "$ENVIRONMENT/bin/pip" freeze 2>/dev/null | grep --quiet --fixed-strings --line-regexp "$GENERATOR"; then
    "$python" -m venv --clear "$ENVIRONMENT"
    "$ENVIRONMENT/bin/pip" install --quiet "$GENERATOR"
  fi
  rm -rf clients/python/ml_assets_client
  PATH="$ENVIRONMENT/bin:$PATH" "$ENVIRONMENT/bin/openapi-python-client" generate --path "$document" \
    --config deployment/client.yaml --meta none --output-path clients/python/ml_assets_client
}

main "$@"
