# The session service: its own extra and folder, services/kit, handmesh/replicas and the stubs. `make images` builds it.
ARG BASE_IMAGE=python:3.13-slim
FROM ${BASE_IMAGE} AS packages
LABEL handmesh.build=packages
COPY compose/wheels /wheels
COPY pyproject.toml constraints.txt compose/install.py /build/
RUN python3 /build/install.py session telemetry
COPY compose/healthy.py /opt/handmesh/
COPY handmesh /build/handmesh
RUN cd /build && mkdir -p /opt/handmesh/app && cp -r --parents handmesh/__init__.py handmesh/*/v1 handmesh/replicas /opt/handmesh/app/
COPY services/__init__.py /opt/handmesh/app/services/
COPY services/kit /opt/handmesh/app/services/kit
COPY services/session /opt/handmesh/app/services/session
RUN /opt/handmesh/bin/python -m compileall -q /opt/handmesh/app

FROM ${BASE_IMAGE}
COPY --from=packages /opt/handmesh /opt/handmesh
ENV PATH=/opt/handmesh/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /
ENTRYPOINT ["python", "-P", "-m"]
CMD ["services.session"]
