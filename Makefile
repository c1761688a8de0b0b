# The only door: everything that people and CI do is a target here. `make` alone lists them.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
INSTALLED := $(VENV)/.installed
PYTHON ?=
ARGS ?=
VERSION ?=

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(INSTALLED) ## Make .venv and install everything in it, from the locked versions

$(INSTALLED): pyproject.toml constraints.txt
	@python=$$(PYTHON='$(PYTHON)' ci/find-python); echo "setup: $$("$$python" --version) in $(VENV)"; "$$python" -m venv $(VENV)
	@$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[dev]' --constraint constraints.txt
	@touch $@

.PHONY: claude-code
claude-code: setup ## Install Claude Code with its SDK (385 MB) for the `claude_code` harness type
	@$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[claude-code]' --constraint constraints.txt

.PHONY: image
image: ## Build handmesh/base:latest, the root file system of Docker hands (as root, on Debian or Ubuntu)
	@ci/base-image

.PHONY: peers
peers: ## Install the reference MCP servers that some tests call, into .peers (PyPI and npm)
	@ci/mcp-peers

.PHONY: wire
wire: setup ## Build the harness in TypeScript and the hand in Go (clients/), where node and go are there
	@ci/peers-on-the-wire

.PHONY: clients
clients: setup ## Build, test and drive the clients in five languages (clients/), where their tool chains are there
	@$(PY) -m clients.conformance $(ARGS)

.PHONY: grpcurl
grpcurl: ## Say where grpcurl is, and build it, pinned, where there is none but go
	@ci/grpcurl

.PHONY: demo
demo: setup ## Watch one session work through all four services on real parts
	@$(PY) -m handmesh.demo $(ARGS)

.PHONY: trace-demo
trace-demo: setup ## Play the demo into an OpenTelemetry collector, built with go, and check that its trace is whole
	@ci/otel-collector >/dev/null
	@$(PY) -m pytest tests/telemetry/test_traces.py $(ARGS)

.PHONY: up
up: setup ## Start a mesh on this machine; Ctrl-C, or `make down` elsewhere, stops it
	@$(BIN)/handmesh up $(ARGS)

.PHONY: down
down: setup ## Stop the mesh that `make up` started
	@$(BIN)/handmesh down $(ARGS)

# What kills, damages, attacks and cuts the power; the last two have a full size of their own, and a small one in `test`.
DRILLS := tests/drills tests/crash tests/sandbox/attacks
DRILLED := $(DRILLS) tests/security tests/conformance/test_hands.py

.PHONY: test
test: setup ## Run the tests but for drills; ARGS='-k name' chooses. What this machine lacks is skipped, unless CI=true
	@$(PY) -m pytest --numprocesses 3 --dist loadfile $(addprefix --ignore=,$(DRILLS)) $(ARGS)

.PHONY: drill drill-small
drill: setup ## Run the drills that kill, damage, attack and cut the power, at full size (some 25 minutes)
	@HANDMESH_DRILL=full $(PY) -m pytest --numprocesses 2 --dist loadfile $(DRILLED) $(ARGS)

drill-small: setup ## Run each drill at a small size, as CI does (some 5 minutes)
	@$(PY) -m pytest --numprocesses 3 --dist loadfile $(DRILLS) $(ARGS)

.PHONY: check
check: setup ## Check format, lint, types, import boundaries, contracts and stubs
	@$(MAKE) --jobs=4 --output-sync=target --keep-going check/types check/imports check/format check/lint check/proto check/stubs

.PHONY: check/format check/lint check/types check/imports check/proto check/stubs
check/format:
	@$(BIN)/ruff format --check --quiet . || { echo "Format it with: make fmt"; exit 1; }
check/lint:
	@$(BIN)/ruff check --quiet .
check/types:
	@$(BIN)/mypy services handmesh tests/support clients/conformance ci/*.py
check/imports:
	@$(BIN)/lint-imports --no-logo
check/proto:
	@$(BIN)/buf lint proto
	@$(BIN)/buf format --diff --exit-code proto
	@$(BIN)/buf breaking proto --against proto/baseline.binpb
	@$(PY) ci/release.py --check
check/stubs:
	@$(PY) ci/stubs.py --check
	@$(PY) ci/reference.py --check
	@$(PY) ci/brain_picture.py --check
	@$(PY) ci/trace_picture.py --check

.PHONY: fmt
fmt: setup ## Format Python and contracts, and mend what lint can
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/buf format --write proto

.PHONY: proto
proto: setup ## Generate the Python stubs, docs/reference.md and docs/configuration.md
	@$(PY) ci/stubs.py
	@$(PY) ci/reference.py
	@$(PY) ci/brain_picture.py
	@$(PY) ci/trace_picture.py

.PHONY: baseline
baseline: setup ## Take the contracts as the new baseline of `buf breaking` (a contract commit, between releases)
	@$(BIN)/buf build proto --output proto/baseline.binpb

.PHONY: release
release: setup ## Cut a release: VERSION=0.2.0. Takes the contracts' image, dates the changelog; commits nothing
	@$(PY) ci/release.py '$(VERSION)'

.PHONY: bench
bench: setup ## Measure, as JSON lines
	@$(PY) -m bench $(ARGS)

.PHONY: bench-log
bench-log: setup ## Measure the log alone, at full size (some minutes); ARGS='--size ci' takes one
	@$(PY) -m bench log --size full $(ARGS)

.PHONY: bench-hands
bench-hands: setup ## Measure sandboxes alone, at full size (some 4 minutes); ARGS='--only executes' takes a part
	@$(PY) -m bench hands --size full $(ARGS)

.PHONY: bench-ttft
bench-ttft: setup ## Measure the time to the first token, coupled and decoupled, at full size (some 15 minutes)
	@$(PY) -m bench ttft --size full --docs docs $(ARGS)

.PHONY: bench-brain
bench-brain: setup ## Measure turns, wakes and crashes, at full size (some 10 minutes); ARGS='--only turn' takes a part
	@$(PY) -m bench brain --size full $(ARGS)

.PHONY: bench-context
bench-context: setup ## Measure how a long session is taken up, and how much of its prompts is cached (a minute)
	@$(PY) -m bench context --size full $(ARGS)

.PHONY: bench-mesh
bench-mesh: setup ## Measure whole meshes: sessions and turns per second, two replicas, traces and TLS (some 5 minutes)
	@$(PY) -m bench mesh --size full $(ARGS)

.PHONY: bench-vault
bench-vault: setup ## Measure calls of MCP tools, the vault's reads and tokens, many sessions, a vault that is away (2 min)
	@$(PY) -m bench vault --size full $(ARGS)

.PHONY: images
images: setup ## Build the images of compose/ on BASE_IMAGE (python:3.13-slim); ARGS='session' takes one
	@ci/images $(ARGS)

.PHONY: wheels
wheels: setup ## Download what the images need into compose/wheels: then their builds need no network
	@ci/wheels

.PHONY: compose
compose: setup ## Build the images, and run the demo, a rolling restart and the loss of a node in containers (5 minutes)
	@ci/compose $(ARGS)

.PHONY: isolated
isolated: setup ## Start each service from its extra and its own folder alone
	@$(PY) ci/isolated.py $(ARGS)

.PHONY: lock
lock: setup ## Choose the locked versions anew: the newest that are a week old (anthropic, claude-agent-sdk: the newest)
	@$(PY) -m pip install --quiet --disable-pip-version-check uv
	@$(BIN)/uv pip compile pyproject.toml --extra dev --extra claude-code --universal --python-version 3.11 --quiet --upgrade \
		--no-header --no-annotate --no-emit-index-url --no-emit-find-links \
		--exclude-newer '7 days' --exclude-newer-package 'anthropic=0 days' \
		--exclude-newer-package 'claude-agent-sdk=0 days' --output-file constraints.txt

.PHONY: ci
ci: ## Do all that CI does (installs system packages as root)
	@ci/pipeline
