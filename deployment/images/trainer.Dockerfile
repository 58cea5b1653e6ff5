# What worker pods run: Python, PyTorch, the trainer. Built from the repository's root:
#   buildah build --layers -f deployment/images/trainer.Dockerfile --build-arg BASE=registry/python@sha256:… .
# BASE: Debian with Python 3.11 to 3.13 and its venv module, by digest; it has no default, since a name without a digest
# is another image tomorrow.
ARG BASE

# Replaced by `--build-context installed=FOLDER`, a folder of installed packages, where there is no package index.
FROM scratch AS installed

FROM ${BASE}
# Packages change seldom and are large: one layer of their own, with no cache and no installer left in it.
RUN --mount=type=bind,from=installed,target=/installed \
    --mount=type=bind,source=deployment,target=/deployment \
    python3 -m venv --without-pip /opt/venv \
 && if [ -n "$(ls -A /installed)" ]; then \
      cp -r /installed/. "$(/opt/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"; \
    else \
      python3 -m venv /tmp/tools \
      && /tmp/tools/bin/pip install --no-cache-dir --require-hashes -r /deployment/requirements/setup.txt \
      && /tmp/tools/bin/uv pip sync --no-cache --compile-bytecode --require-hashes \
           --python /opt/venv/bin/python /deployment/images/trainer.txt \
      && rm -r /tmp/tools; \
    fi
COPY pyproject.toml /opt/ml-assets/
COPY resources /opt/ml-assets/resources
COPY ml_assets /opt/ml-assets/ml_assets
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONPATH=/opt/ml-assets \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
WORKDIR /tmp
# Numeric, so that `runAsNonRoot` can be checked.
USER 65532:65532
CMD ["python", "-m", "ml_assets.training.pod"]
