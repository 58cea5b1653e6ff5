# What worker pods run: Python, PyTorch, the trainer. Built from the repository's root:
#   buildah build -f deployment/images/trainer.Dockerfile --build-arg BASE=registry/python@sha256:… .
# BASE: Debian with Python 3.11 to 3.13 and its venv module, by digest; it has no default, since a name without a digest
# is another image tomorrow.
ARG BASE
# "locked" installs deployment/images/trainer.txt, every download checked by its hash; "given" copies a folder of
# installed packages (--build-context installed=FOLDER), for places without a package index.
ARG PACKAGES=locked

FROM ${BASE} AS environment
RUN python3 -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH

FROM environment AS locked
COPY deployment/requirements/setup.txt deployment/images/trainer.txt /locks/
# One layer, without caches: packages change seldom, the code above them often.
RUN pip install --no-cache-dir --require-hashes -r /locks/setup.txt \
 && uv pip sync --no-cache --compile-bytecode --require-hashes --python /opt/venv/bin/python /locks/trainer.txt

FROM environment AS given
RUN --mount=type=bind,from=installed,target=/packages \
    cp -r /packages/. "$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"

FROM ${PACKAGES} AS packages

FROM ${BASE}
COPY --from=packages /opt/venv /opt/venv
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
