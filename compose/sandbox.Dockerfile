# The sandbox service: its own extra and folder, services/kit and the stubs. `make images` builds it.
ARG BASE_IMAGE=python:3.13-slim
FROM ${BASE_IMAGE} AS packages
COPY compose/wheels /wheels
COPY pyproject.toml constraints.txt compose/install.py /build/
RUN python3 /build/install.py sandbox
COPY compose/healthy.py /opt/handmesh/
COPY handmesh/__init__.py /opt/handmesh/app/handmesh/
COPY handmesh/error/v1 /opt/handmesh/app/handmesh/error/v1
COPY handmesh/session/v1 /opt/handmesh/app/handmesh/session/v1
COPY handmesh/harness/v1 /opt/handmesh/app/handmesh/harness/v1
COPY handmesh/sandbox/v1 /opt/handmesh/app/handmesh/sandbox/v1
COPY handmesh/vault_proxy/v1 /opt/handmesh/app/handmesh/vault_proxy/v1
COPY services/__init__.py /opt/handmesh/app/services/
COPY services/kit /opt/handmesh/app/services/kit
COPY services/sandbox /opt/handmesh/app/services/sandbox
RUN /opt/handmesh/bin/python -m compileall -q /opt/handmesh/app

FROM ${BASE_IMAGE}
COPY --from=packages /opt/handmesh /opt/handmesh
ENV PATH=/opt/handmesh/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /
ENTRYPOINT ["python", "-P", "-m"]
CMD ["services.sandbox"]
