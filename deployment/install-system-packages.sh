#!/usr/bin/env bash
# Installs the packages of the given lists that this machine lacks, as root or by sudo: one Debian package per line.
# Needs neither if nothing is missing. Called by .ci/run and by the targets that start servers.
set -euo pipefail

names="$(cat "$@" | grep -v '^#')" # fails if a list is missing
missing=()
while read -r name; do
  dpkg-query --show --showformat='${Status}' "$name" 2>/dev/null | grep -q 'ok installed' || missing+=("$name")
done <<<"$names"
if [ ${#missing[@]} -eq 0 ]; then exit 0; fi

echo "Installing ${missing[*]}."
root=()
if [ "$(id -u)" -ne 0 ]; then root=(sudo --non-interactive); fi

# Upon installation, Debian's PostgreSQL makes and starts its own database cluster, which nothing here uses.
policy=/etc/postgresql-common/createcluster.d/no-main-cluster.conf
if [[ " ${missing[*]} " == *" postgresql "* ]] && [ ! -e "$policy" ]; then
  "${root[@]}" mkdir -p "${policy%/*}"
  echo 'create_main_cluster = false' | "${root[@]}" tee "$policy" >/dev/null
  trap '"${root[@]}" rm -f "$policy"' EXIT
fi

"${root[@]}" apt-get update --quiet --quiet -o Acquire::Retries=3
"${root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -o Acquire::Retries=3 --quiet --quiet --yes --no-install-recommends "${missing[@]}"
