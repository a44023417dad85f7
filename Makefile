# Muster. `make help` lists the targets; every one sets up what it needs.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

help: ## list the targets
	@echo "Two commands do everything on a fresh machine: make demo, make test."
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1|\2/' | column -t -s '|'

setup: $(READY) ## make .venv with both frameworks and all tools

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; v=sys.version_info; sys.exit(0 if v >= (3, 11) else f"Muster needs Python 3.11 or newer; $(PYTHON) is {v[0]}.{v[1]}. Say make PYTHON=python3.12")'
	@echo "Setting up $(VENV): about 9 GB, one to five minutes"
	@$(PYTHON) -m venv $(VENV) || { echo "python3 has no venv module: on Debian, apt-get install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.5,<1'
	@$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python -e '.[dev]'
	@$(BIN)/python -m compileall -q contract operator trainer_image
	@touch $@

demo: $(READY) ## train digits on two workers, kill one, see it resume, and write a report
	@$(BIN)/python examples/demo.py

recording: $(READY) ## the picture in the README, from the output of a real `make demo`
	@$(BIN)/python examples/recording.py

# How many targets `make test` runs at once. Tests wait a lot: with three, two cores are busy.
AT_ONCE ?= 3
SEVERAL_AT_ONCE = $(MAKE) --no-print-directory --jobs=$(AT_ONCE) $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

test: $(READY) ## all that CI runs: `check`, the control plane, and the cut on a real cluster, which is removed afterwards
	@$(SEVERAL_AT_ONCE) lint control-plane cluster-test unit property some-mutants manifests-check local
	@$(MAKE) --no-print-directory cluster-down

check: lint unit property some-mutants local ## lint, types, unit, property, planted bugs, real training: all that needs no Kubernetes

lint: $(READY) ## ruff, mypy --strict, layers, and whether generated files are current
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy examples/demo.py
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m muster.admission.crd --check
	$(BIN)/python deploy/reference.py --check
	$(BIN)/python deploy/pod_fields.py --check

unit: $(READY) ## unit tests
	$(BIN)/pytest tests/unit tests/chaos/test_matrix.py

property: $(READY) ## property tests of the pure core
	$(BIN)/pytest tests/property

local: $(READY) ## real training processes on this machine, with a selection of the faults
	$(BIN)/pytest tests/local tests/chaos --ignore tests/chaos/test_matrix.py -m "not chaos and not thorough" -n 2 --dist loadfile

thorough: $(READY) mutants ## what `make test` leaves out to be quick: all planted bugs, and more worlds, layouts, inputs, errors and kills
	$(BIN)/pytest tests/local tests/apiserver -m thorough

chaos: $(READY) ## every fault with every strategy, on this machine and on a real cluster (tests/chaos/matrix.yaml): some hours
	$(BIN)/pytest tests/chaos tests/cluster --ignore tests/cluster/test_pod_faults.py -m "not tutorial and not engines and not release"
	$(BIN)/pytest tests/cluster/test_pod_faults.py -n 2

chaos-walk: $(READY) ## faults at random moments on one local job: SEED=1 MINUTES=20 STRATEGY=DDP
	$(BIN)/python -m tests.chaos.walk --seed $(or $(SEED),1) --minutes $(or $(MINUTES),20) --job $(or $(STRATEGY),DDP)

control-plane: $(READY) ## the chart, a release, and the operator on a real API server without nodes
	$(BIN)/pytest tests/chart tests/release tests/apiserver -m "not thorough"

control-plane-oldest: $(READY) ## jobs on the API server of Kubernetes 1.30, the oldest supported, as far as it decides: builds it, 10 minutes
	MUSTER_TEST_API_SERVER=oldest $(BIN)/pytest $(foreach name,rules policies devices bad_input explain lifecycle,tests/apiserver/test_$(name).py)

gang-test: $(READY) ## jobs on the scheduler of Kubernetes, with gang scheduling and simulated nodes
	$(BIN)/pytest tests/gang

coscheduling-test: $(READY) ## jobs on the scheduler of scheduler-plugins, with its coscheduling and simulated nodes; builds it once
	$(BIN)/pytest tests/coscheduling

gang-trials: $(READY) ## random contention for nodes, with and without gang scheduling: OPTIONS="--trials 1000 --seed 17"
	$(BIN)/python -m bench.gang_trials $(OPTIONS)

kueue-test: $(READY) ## jobs in the queues of Kueue, on the scheduler of Kubernetes with simulated nodes
	$(BIN)/pytest tests/kueue

karpenter-test: $(READY) ## jobs on nodes that Karpenter adds and takes away, simulated by kwok; builds Karpenter once
	$(BIN)/pytest tests/karpenter

ui-test: $(READY) ## the web page in Debian's chromium, which must be installed: PICTURES=folder saves pictures of the pages
	MUSTER_UI_PICTURES=$(PICTURES) $(BIN)/pytest tests/ui

bench: $(READY) ## operator, channel, recovery, checkpoints, snapshots in memory, pipelines, plans and overhead, as ratios taken in one run
	$(BIN)/python -m bench.control_plane
	$(BIN)/python -m bench.channel
	$(BIN)/python -m bench.recovery
	$(BIN)/python -m bench.checkpoints
	$(BIN)/python -m bench.memory
	$(BIN)/python -m bench.pipeline
	$(BIN)/python -m bench.plan
	$(BIN)/python -m bench.overhead

bench-scale: $(READY) ## many jobs, a large job that loses half of its replicas, operators that are killed: OPTIONS="--replicas 4096 --jobs 1000"
	$(BIN)/python -m bench.scale $(OPTIONS)

bench-spot: $(READY) ## spot interruptions on one hundred simulated nodes, with and without notices: OPTIONS="--seed 1 --seconds 600"
	$(BIN)/python -m bench.spot $(OPTIONS)

bench-gpu: $(READY) ## training and recovery on a machine with an NVIDIA GPU, which all processes share
	$(BIN)/python -m bench.gpu $(OPTIONS)

bench-engines: $(READY) ## recovery of Ray, MPI, Horovod and Spark beside what they have themselves, up to half an hour: OPTIONS="--engines ray"
	$(BIN)/python -m bench.engines $(OPTIONS)

checkpoints-across: $(READY) ## checkpoints written under one Python and PyTorch, read under another: downloads 10 GB, takes minutes
	$(BIN)/python -m tests.checkpoints_across.run

fuzz: $(READY) ## random inputs for all that reads input of others, for a limited time: SECONDS=300
	$(BIN)/python -m tests.fuzz.run --seconds $(or $(filter-out 0,$(SECONDS)),60) $(foreach name,$(TARGET),--target $(name))

mutants: $(READY) ## plant bugs in the lifecycle core, one at a time; the property tests must find each
	$(BIN)/python -m tests.mutants.run

some-mutants: $(READY) ## the same with each sixth bug; `make unit property` runs the tests without a bug
	$(BIN)/python -m tests.mutants.run --every 6 --bugs-only

locks: $(READY) ## pin what the images install, with hashes, in deploy/locks; asks the package index
	$(BIN)/python deploy/lock.py

sbom: $(READY) ## a software bill of materials (CycloneDX) of each image's packages, in build/sbom
	@mkdir -p build/sbom
	@for lock in deploy/locks/*.txt; do \
	  $(BIN)/uv tool run --quiet --from 'cyclonedx-bom>=7,<8' cyclonedx-py requirements --pyproject pyproject.toml \
	    --output-reproducible --output-file build/sbom/$$(basename $$lock .txt).cdx.json $$lock || exit 1; \
	done; ls build/sbom/*

audit: $(READY) ## known vulnerabilities of the locked packages; asks the package index
	@for lock in deploy/locks/*.txt; do echo $$lock; \
	  $(BIN)/uv tool run --quiet --from 'pip-audit>=2.9,<3' pip-audit --strict --disable-pip --require-hashes --requirement $$lock || failed=1; \
	done; exit $${failed:-0}

RELEASE = $(BIN)/python deploy/release.py "$(VERSION)" --url "$(URL)" --key "$(KEY)"

public-manifests: $(READY) ## the examples that other operators publish, through `muster convert`; downloads them as Go modules
	$(BIN)/pytest tests/public_manifests

release: $(READY) ## all files of a release but the images, in dist/: VERSION=1.2.3, and if you like URL= and KEY= (docs/releasing.md)
	@$(RELEASE)

release-images: $(READY) ## the images of the release as OCI archives, in dist/: VERSION=1.2.3 IMAGES="operator ui"; needs Docker 25 or newer, or skopeo too
	@$(RELEASE) images $(foreach name,$(IMAGES),--image $(name))

release-test: $(READY) ## whether dist/ is enough to install, and two builds are the same, with the plug-ins of all platforms
	$(BIN)/pytest tests/release

crd: $(READY) ## write crds/ and docs/schema/ from the API types
	$(BIN)/python -m muster.admission.crd

reference: $(READY) ## write docs/reference/ from the code, and the fields of pods from the Kubernetes client
	$(BIN)/python deploy/reference.py
	$(BIN)/python deploy/pod_fields.py

MKDOCS = NO_MKDOCS_2_WARNING=1 $(BIN)/uv tool run --quiet --from 'mkdocs-material>=9.6,<10' mkdocs

docs: $(READY) ## the documentation as a site, in build/site; a broken link is an error
	$(MKDOCS) build --strict

docs-serve: $(READY) ## the same at http://127.0.0.1:8000, renewed when a page changes
	$(MKDOCS) serve --dev-addr 127.0.0.1:8000

format: $(READY) ## let ruff format and fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

include local_cluster/cluster.mk

clean: ## remove .venv, caches and runs
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache runs build dist

.PHONY: help setup demo recording test check lint unit property local thorough chaos chaos-walk checkpoints-across gang-test coscheduling-test gang-trials kueue-test karpenter-test ui-test fuzz mutants some-mutants control-plane control-plane-oldest bench bench-engines bench-gpu bench-scale bench-spot locks sbom audit public-manifests release release-images release-test crd reference docs docs-serve format clean
