# Dagster's webserver, its daemon and the code location, and the runs they start. Built from the repository's root:
#   buildah build -f deployment/images/platform.Dockerfile --build-arg BASE=registry/python@sha256:… .
# BASE and PACKAGES as in trainer.Dockerfile.
ARG BASE
ARG PACKAGES=locked

FROM ${BASE} AS environment
RUN python3 -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH

FROM environment AS locked
COPY deployment/requirements /locks/requirements
COPY deployment/images/platform.txt /locks/
# One data set is published as source: it is built with locked tools, too.
RUN pip install --no-cache-dir --require-hashes -r /locks/requirements/setup.txt \
 && UV_BUILD_CONSTRAINT=/locks/requirements/build.txt UV_PREVIEW_FEATURES=build-dependency-hashes \
    uv pip sync --no-cache --compile-bytecode --require-hashes --require-build-hashes \
    --python /opt/venv/bin/python /locks/platform.txt

FROM environment AS given
RUN --mount=type=bind,from=installed,target=/packages \
    cp -r /packages/. "$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"

FROM ${PACKAGES} AS packages

FROM ${BASE}
COPY --from=packages /opt/venv /opt/venv
COPY pyproject.toml workspace.yaml /opt/ml-assets/
COPY deployment/dagster.yaml deployment/dagster-servers.yaml /opt/ml-assets/deployment/
COPY resources /opt/ml-assets/resources
COPY ml_assets /opt/ml-assets/ml_assets
# The command as installation makes it, without a second copy of the code in the packages' layer.
RUN printf '#!/opt/venv/bin/python\nfrom ml_assets.cli import main\nmain()\n' > /usr/local/bin/ml-assets \
 && chmod 755 /usr/local/bin/ml-assets && mkdir -p /var/lib/ml-assets && chown 65532:65532 /var/lib/ml-assets
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
