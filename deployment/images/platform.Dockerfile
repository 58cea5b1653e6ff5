# Dagster's webserver, its daemon and the code location, and the runs they start. Built from the repository's root:
#   buildah build --layers -f deployment/images/platform.Dockerfile --build-arg BASE=registry/python@sha256:… .
# BASE and `installed` as in trainer.Dockerfile.
ARG BASE

FROM scratch AS installed

FROM ${BASE}
# One data set is published as source: it is built with locked tools, too.
RUN --mount=type=bind,from=installed,target=/installed \
    --mount=type=bind,source=deployment,target=/deployment \
    python3 -m venv --without-pip /opt/venv \
 && if [ -n "$(ls -A /installed)" ]; then \
      cp -r /installed/. "$(/opt/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"; \
    else \
      python3 -m venv /tmp/tools \
      && /tmp/tools/bin/pip install --no-cache-dir --require-hashes -r /deployment/requirements/setup.txt \
      && UV_BUILD_CONSTRAINT=/deployment/requirements/build.txt UV_PREVIEW_FEATURES=build-dependency-hashes \
         /tmp/tools/bin/uv pip sync --no-cache --compile-bytecode --require-hashes --require-build-hashes \
           --python /opt/venv/bin/python /deployment/images/platform.txt \
      && rm -r /tmp/tools; \
    fi
# The command as installation would make it, without a second copy of the code among the packages.
RUN printf '#!/opt/venv/bin/python\nfrom ml_assets.cli import main\nmain()\n' > /usr/local/bin/ml-assets \
 && chmod 755 /usr/local/bin/ml-assets && mkdir -p /var/lib/ml-assets && chown 65532:65532 /var/lib/ml-assets
COPY pyproject.toml workspace.yaml /opt/ml-assets/
COPY deployment/dagster.yaml deployment/dagster-servers.yaml /opt/ml-assets/deployment/
COPY resources /opt/ml-assets/resources
COPY ml_assets /opt/ml-assets/ml_assets
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONPATH=/opt/ml-assets \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    ML_ASSETS_HOME=/var/lib/ml-assets \
    DAGSTER_HOME=/var/lib/ml-assets/dagster
VOLUME /var/lib/ml-assets
WORKDIR /opt/ml-assets
USER 65532:65532
EXPOSE 3000
CMD ["dagster-webserver", "-h", "0.0.0.0", "-p", "3000", "-w", "workspace.yaml"]
