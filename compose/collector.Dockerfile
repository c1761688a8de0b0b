# The collector that ci/otel-collector builds, for machines that reach no container registry. The context is its folder.
ARG BASE_IMAGE=python:3.13-slim
FROM ${BASE_IMAGE}
ARG PROGRAM
COPY ${PROGRAM} /usr/local/bin/otelcol
USER 10001:10001
WORKDIR /
ENTRYPOINT ["otelcol"]
