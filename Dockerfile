# Muster's images. Targets: operator, trainer-pytorch, trainer-tensorflow. docs/install.md says how to build them.
#
# No mounts and no here-documents: an engine without BuildKit builds it too. Such an engine builds every stage up to the target, which
# costs time once; with the same arguments for every target, the others then come from its cache.

# A tag can change. For builds that can be repeated give a digest: --build-arg BASE_IMAGE=python:3.13-slim@sha256:...
ARG BASE_IMAGE=python:3.13-slim
# What the PyTorch trainer is built on; with TORCH=base that image brings torch, for its own Python and devices.
ARG PYTORCH_BASE_IMAGE=${BASE_IMAGE}

# ---- what to install ----
# In a stage of its own: a change of pyproject.toml that changes no requirement installs nothing anew.
FROM ${BASE_IMAGE} AS requirements
# pip: torch from the index. base: torch of the base image.
ARG TORCH=pip
# tensorflow-cpu makes an image for clusters without accelerators.
ARG TENSORFLOW=tensorflow[and-cuda]
# true: the versions of deploy/locks, each file checked by its hash. false: what pyproject.toml allows, for an index with builds of its own.
ARG LOCKED=true
WORKDIR /src
COPY pyproject.toml ./
COPY deploy/requirements.py deploy/install_over_base.py deploy/
COPY deploy/locks deploy/locks
RUN case "$LOCKED" in true) ranges= ;; false) ranges=--ranges ;; *) echo "LOCKED=$LOCKED: write true or false" >&2; exit 1 ;; esac && \
    python3 deploy/requirements.py build $ranges > build.txt && \
    python3 deploy/requirements.py operator $ranges > operator.txt && \
    python3 deploy/requirements.py pytorch "$TORCH" $ranges > pytorch.txt && \
    python3 deploy/requirements.py pytorch "$TORCH" --ranges > pytorch-ranges.txt && \
    python3 deploy/requirements.py tensorflow "$TENSORFLOW" $ranges > tensorflow.txt

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
COPY operator operator
COPY trainer_image trainer_image
RUN /build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . && \
    pip install --no-index --no-deps /wheels/*.whl && pip uninstall --yes pip

FROM ${BASE_IMAGE} AS operator
RUN getent passwd 1000 > /dev/null || useradd --uid 1000 --user-group --no-create-home --home-dir /tmp --shell /usr/sbin/nologin muster
COPY --from=operator-build /opt/muster /opt/muster
ENV PATH=/opt/muster/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
USER 1000:1000
WORKDIR /
ENTRYPOINT ["python", "-P", "-m", "muster.kubernetes"]
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

# ---- trainer for PyTorch ----
FROM ${PYTORCH_BASE_IMAGE} AS trainer-pytorch-build
ARG TORCH=pip
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PATH=/opt/muster/bin:$PATH
RUN case "$TORCH" in \
      pip) python3 -m venv /opt/muster ;; \
      base) python3 -c 'import torch' && python3 -m venv --system-site-packages /opt/muster ;; \
      *) echo "TORCH=$TORCH: write pip or base" >&2; exit 1 ;; \
    esac
WORKDIR /src
COPY --from=requirements /src/pytorch.txt /src/pytorch-ranges.txt /src/deploy/install_over_base.py ./
RUN case "$TORCH" in \
      pip) pip install -r pytorch.txt ;; \
      base) python install_over_base.py pytorch.txt pytorch-ranges.txt ;; \
    esac
# The base image's own torchrun would start the base's Python, which sees nothing of what is installed here.
RUN test -e /opt/muster/bin/torchrun || \
    { printf '#!/opt/muster/bin/python\nfrom torch.distributed.run import main\nmain()\n' > /opt/muster/bin/torchrun && chmod 755 /opt/muster/bin/torchrun; }
# A layer of its own, after the gigabytes of the framework: a new version of Muster is a small pull.
RUN echo /opt/muster-trainer > "$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/muster-trainer.pth"
COPY trainer_image/muster_trainer /opt/muster-trainer/muster_trainer
RUN python -m compileall -q /opt/muster-trainer

FROM ${PYTORCH_BASE_IMAGE} AS trainer-pytorch
RUN getent passwd 1000 > /dev/null || useradd --uid 1000 --user-group --no-create-home --home-dir /tmp --shell /usr/sbin/nologin muster
COPY --from=trainer-pytorch-build /opt/muster /opt/muster
COPY --from=trainer-pytorch-build /opt/muster-trainer /opt/muster-trainer
ENV PATH=/opt/muster/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
USER 1000:1000
# Not writable: modules of user code may be imported from here.
WORKDIR /workspace
ENTRYPOINT ["python", "-P", "-m", "muster_trainer.supervisor"]
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG CREATED=unknown
ARG SOURCE=unknown
LABEL org.opencontainers.image.title="Muster trainer for PyTorch" \
      org.opencontainers.image.description="Supervisor, checkpoints and PyTorch strategies of Muster's training jobs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.source="${SOURCE}"

# ---- trainer for TensorFlow ----
FROM ${BASE_IMAGE} AS trainer-tensorflow-build
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PATH=/opt/muster/bin:$PATH
RUN python3 -m venv /opt/muster
WORKDIR /src
COPY --from=requirements /src/tensorflow.txt ./
RUN pip install -r tensorflow.txt
# A layer of its own, after the gigabytes of the framework: a new version of Muster is a small pull.
RUN echo /opt/muster-trainer > "$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/muster-trainer.pth"
COPY trainer_image/muster_trainer /opt/muster-trainer/muster_trainer
RUN python -m compileall -q /opt/muster-trainer

FROM ${BASE_IMAGE} AS trainer-tensorflow
RUN getent passwd 1000 > /dev/null || useradd --uid 1000 --user-group --no-create-home --home-dir /tmp --shell /usr/sbin/nologin muster
COPY --from=trainer-tensorflow-build /opt/muster /opt/muster
COPY --from=trainer-tensorflow-build /opt/muster-trainer /opt/muster-trainer
ENV PATH=/opt/muster/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
USER 1000:1000
# Not writable: modules of user code may be imported from here.
WORKDIR /workspace
ENTRYPOINT ["python", "-P", "-m", "muster_trainer.supervisor"]
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG CREATED=unknown
ARG SOURCE=unknown
LABEL org.opencontainers.image.title="Muster trainer for TensorFlow" \
      org.opencontainers.image.description="Supervisor, checkpoints and TensorFlow strategies of Muster's training jobs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.source="${SOURCE}"
