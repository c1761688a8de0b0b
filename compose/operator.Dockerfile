# What runs before and beside a mesh: the steps of handmesh.launcher.containers, the `handmesh` command and the scripted
# model. `make images` builds it.
ARG BASE_IMAGE=python:3.13-slim
FROM ${BASE_IMAGE} AS packages
LABEL handmesh.build=packages
COPY compose/wheels /wheels
COPY pyproject.toml constraints.txt compose/install.py /build/
RUN python3 /build/install.py client
COPY handmesh /opt/handmesh/app/handmesh
RUN /opt/handmesh/bin/python -m compileall -q /opt/handmesh/app

FROM ${BASE_IMAGE}
COPY --from=packages /opt/handmesh /opt/handmesh
ENV PATH=/opt/handmesh/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /
ENTRYPOINT ["python", "-P", "-m"]
CMD ["handmesh.cli"]
