# The test cluster and what runs on it: included by the Makefile. See tests/cluster/README.md.
HARNESS := $(BIN)/python -m tests.cluster.harness
HELM_ENV = HELM="$$($(HARNESS) build helm)"

cluster: $(READY) ## a kind cluster with Muster installed by Helm; eval "$(make -s cluster)" leads kubectl to it
	@$(BIN)/python -m tests.cluster

cluster-down: $(READY) ## remove that cluster and everything that came with it, but for the cache
	@$(HARNESS) down

images: $(READY) ## build the images for tests from the Dockerfile, on an engine of the harness where there is none
	@$(BIN)/python -m tests.cluster.images

cluster-test: $(READY) ## the cut of the tests on a real cluster that make test runs
	$(BIN)/pytest tests/cluster -m "not chaos"

cluster-bench: $(READY) ## how long jobs on the real cluster stand still when pods die
	$(BIN)/python bench/cluster_recovery.py

manifests: $(READY) ## write what is generated: the chart's copy of the CRD, its table of values, deploy/install.yaml
	@$(HELM_ENV) $(BIN)/python deploy/generate.py

manifests-check: $(READY) ## whether those are current
	@$(HELM_ENV) $(BIN)/python deploy/generate.py --check

.PHONY: cluster cluster-down images cluster-test cluster-bench manifests manifests-check
