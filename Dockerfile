# Muster's images: `--target operator`, `--target ui`, and `--target trainer --build-arg FRAMEWORK=pytorch|tensorflow|jax|horovod|mpi|ray|spark`. See docs/install.md.
#
# No mounts and no here-documents, so that an engine without BuildKit builds it too. Such an engine builds every stage up to the target.
# The stages of the operator come first and use no argument of the trainer, so that later builds find them in its cache.

# A tag can change. For builds that can be repeated give a digest: --build-arg BASE_IMAGE=python:3.13-slim@sha256:...
ARG BASE_IMAGE=python:3.13-slim
# What the trainer is built on. With DISTRIBUTION=base that image brings the framework, for its own Python and devices.
ARG TRAINER_BASE_IMAGE=${BASE_IMAGE}

# ---- what to install ----
# In a stage of its own: a change of pyproject.toml that changes no requirement installs nothing anew.
FROM ${BASE_IMAGE} AS requirements
# true: the versions of deploy/locks, each file checked by its hash. false: what pyproject.toml allows, for an index with builds of its own.
ARG LOCKED=true
WORKDIR /src
COPY pyproject.toml ./
COPY deploy/requirements.py deploy/install_over_base.py deploy/horovod_wheel.py deploy/
COPY deploy/locks deploy/locks
RUN case "$LOCKED" in true) touch ranges ;; false) echo --ranges > ranges ;; *) echo "LOCKED=$LOCKED: write true or false" >&2; exit 1 ;; esac && \
    python3 deploy/requirements.py build $(cat ranges) > build.txt && \
    python3 deploy/requirements.py operator $(cat ranges) > operator.txt && \
    python3 deploy/requirements.py ui $(cat ranges) > ui.txt

# ---- operator ----
FROM ${BASE_IMAGE} AS operator-build
# An index of your own, where the public one cannot be reached.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PATH=/opt/muster/bin:$PATH
RUN python3 -m venv /opt/muster
WORKDIR /src
COPY --from=requirements /src/operator.txt /src/build.txt ./
RUN pip install -r operator.txt && python3 -m venv /build && /build/bin/pip install -r build.txt
COPY pyproject.toml README.md LICENSE ./
COPY contract contract
COPY engines engines
COPY operator operator
COPY trainer_image trainer_image
RUN /build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . && \
    pip install --no-index --no-deps /wheels/*.whl && python -P -c 'import muster.operator.operator, muster_trainer.supervisor' && \
    pip uninstall --yes pip

FROM ${BASE_IMAGE} AS operator
RUN getent passwd 1000 > /dev/null || useradd --uid 1000 --user-group --no-create-home --home-dir /tmp --shell /usr/sbin/nologin muster
COPY --from=operator-build /opt/muster /opt/muster
ENV PATH=/opt/muster/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
USER 1000:1000
WORKDIR /
ENTRYPOINT ["python", "-P", "-m", "muster.operator"]
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG CREATED=unknown
ARG SOURCE=unknown
LABEL org.opencontainers.image.title="Muster operator" \
      org.opencontainers.image.description="Runs distributed training jobs on Kubernetes, and gets them finished" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.source="${SOURCE}"

# ---- trainer ----
FROM requirements AS trainer-requirements
ARG FRAMEWORK
# Empty: the build for NVIDIA GPUs. tensorflow-cpu or jax: for clusters without accelerators. base: the framework of the base image.
ARG DISTRIBUTION
RUN python3 deploy/requirements.py trainer "$FRAMEWORK" "$DISTRIBUTION" $(cat ranges) > trainer.txt && \
    python3 deploy/requirements.py trainer "$FRAMEWORK" "$DISTRIBUTION" --ranges > trainer-ranges.txt

FROM ${TRAINER_BASE_IMAGE} AS trainer-build
ARG FRAMEWORK
ARG DISTRIBUTION
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PATH=/opt/muster/bin:$PATH
WORKDIR /src
COPY --from=trainer-requirements /src/trainer.txt /src/trainer-ranges.txt /src/deploy/install_over_base.py ./
RUN if [ "$DISTRIBUTION" = base ]; \
    then python3 -m venv --system-site-packages /opt/muster && python install_over_base.py trainer.txt trainer-ranges.txt; \
    else python3 -m venv /opt/muster && pip install -r trainer.txt; fi
# The package index has no wheel of Horovod. This stage builds it for the PyTorch that is installed, and the compiler stays here. Debian's
# PyTorch has its headers in packages of their own.
COPY --from=requirements /src/deploy/horovod_wheel.py ./
RUN test "$FRAMEWORK" != horovod || \
    { apt-get update && apt-get install --yes --no-install-recommends cmake g++ make \
      $(! dpkg --status python3-torch > /dev/null 2>&1 || echo libtorch-dev pybind11-dev) && python horovod_wheel.py /wheels && \
    pip install --no-index --no-deps /wheels/*.whl && python -P -c 'import horovod.torch'; }
# The base image's own torchrun would start the base's Python, which sees nothing of what is installed here.
RUN test "$FRAMEWORK" != pytorch || test -e /opt/muster/bin/torchrun || \
    { printf '#!/opt/muster/bin/python\nfrom torch.distributed.run import main\nmain()\n' > /opt/muster/bin/torchrun && chmod 755 /opt/muster/bin/torchrun; }
# A layer of its own, after the gigabytes of the framework: a new version of Muster is a small pull.
RUN echo /opt/muster-trainer > "$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/muster-trainer.pth"
COPY contract/muster_contract /opt/muster-trainer/muster_contract
COPY trainer_image/muster_trainer /opt/muster-trainer/muster_trainer
COPY trainer_image/muster_training /opt/muster-trainer/muster_training
COPY engines /opt/muster-trainer
# The import shows that the image has the framework. An engine beside the core has its trainer's side in a package of its own.
RUN python -m compileall -q /opt/muster-trainer && \
    if [ -d "/opt/muster-trainer/muster_$FRAMEWORK" ]; \
    then for file in /opt/muster-trainer/muster_$FRAMEWORK/[a-z]*.py; do \
        module=$(basename "$file" .py); [ "$module" = strategy ] || python -P -c "import muster_$FRAMEWORK.$module, muster_trainer.process, muster_training" || exit 1; done; \
    else python -P -c "import muster_trainer.$FRAMEWORK.digits, muster_training"; fi

FROM ${TRAINER_BASE_IMAGE} AS trainer
ARG FRAMEWORK
# Spark runs on Java. Debian's default is 17 or 21, and Spark 4 supports both.
# Its package fails without a folder for manual pages, which small images lack.
RUN test "$FRAMEWORK" != spark || \
    { mkdir -p /usr/share/man/man1 && apt-get update && apt-get install --yes --no-install-recommends default-jre-headless && rm -rf /var/lib/apt/lists/*; }
RUN getent passwd 1000 > /dev/null || useradd --uid 1000 --user-group --no-create-home --home-dir /tmp --shell /usr/sbin/nologin muster
COPY --from=trainer-build /opt/muster /opt/muster
COPY --from=trainer-build /opt/muster-trainer /opt/muster-trainer
ENV PATH=/opt/muster/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
USER 1000:1000
# Not writable: modules of user code may be imported from here.
WORKDIR /workspace
ENTRYPOINT ["python", "-P", "-m", "muster_trainer.supervisor"]
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG CREATED=unknown
ARG SOURCE=unknown
LABEL org.opencontainers.image.title="Muster trainer for ${FRAMEWORK}" \
      org.opencontainers.image.description="Supervisor, checkpoints and strategies of Muster's training jobs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.source="${SOURCE}"

# ---- web page ----
# Last, so that an engine without BuildKit does not build it for other targets.
FROM ${BASE_IMAGE} AS ui-build
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PATH=/opt/muster/bin:$PATH
RUN python3 -m venv /opt/muster
COPY --from=requirements /src/ui.txt ./
RUN pip install -r ui.txt
COPY --from=operator-build /wheels /wheels
RUN pip install --no-index --no-deps /wheels/*.whl && python -P -c 'import muster.tools.ui.serving, botocore.session' && pip uninstall --yes pip

FROM ${BASE_IMAGE} AS ui
RUN getent passwd 1000 > /dev/null || useradd --uid 1000 --user-group --no-create-home --home-dir /tmp --shell /usr/sbin/nologin muster
COPY --from=ui-build /opt/muster /opt/muster
ENV PATH=/opt/muster/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
USER 1000:1000
WORKDIR /
ENTRYPOINT ["python", "-P", "-m", "muster.cli", "ui"]
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG CREATED=unknown
ARG SOURCE=unknown
LABEL org.opencontainers.image.title="Muster web page" \
      org.opencontainers.image.description="All training jobs, live and afterwards" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.source="${SOURCE}"
