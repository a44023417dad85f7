# The test cluster and what runs on it: included by the Makefile. See local_cluster/README.md.
LOCAL_CLUSTER := $(BIN)/python -m local_cluster
HELM_ENV = HELM="$$($(LOCAL_CLUSTER) build helm)"

cluster: $(READY) ## a kind cluster with Muster installed by Helm; eval "$(make -s cluster)" leads kubectl to it
	@$(LOCAL_CLUSTER) up --muster

cluster-down: $(READY) ## remove that cluster and everything that came with it, but for the cache
	@$(LOCAL_CLUSTER) down

images: $(READY) ## build the images for tests from the Dockerfile, on a Docker engine of its own where there is none
	@$(LOCAL_CLUSTER) images

cluster-test: $(READY) ## the cut of the tests on a real cluster that make test runs
	$(BIN)/pytest tests/cluster -m "not chaos and not tutorial and not engines and not release"

tutorials: $(READY) ## the commands of the tutorial for a cluster, as they are written, on a real cluster
	$(BIN)/pytest tests/cluster -m tutorial

engines-test: $(READY) ## the examples of MPI, Horovod, Ray and Spark on a real cluster, also with killed pods; builds their images
	$(BIN)/pytest tests/cluster -m engines

release-cluster-test: $(READY) ## whether dist/ with its images is enough to install on a real cluster and to train there; builds the images
	$(BIN)/pytest tests/cluster -m release

cluster-bench: $(READY) ## how long jobs on the real cluster stand still when pods die
	$(BIN)/python -m bench.cluster_recovery

manifests: $(READY) ## write what is generated: the chart's copy of the CRD, its table of values, deploy/install.yaml
	@$(HELM_ENV) $(BIN)/python deploy/generate.py

manifests-check: $(READY) ## whether those are current
	@$(HELM_ENV) $(BIN)/python deploy/generate.py --check

.PHONY: cluster cluster-down images cluster-test tutorials engines-test release-cluster-test cluster-bench manifests manifests-check
