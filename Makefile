# Every target sets itself up; `make` alone lists them. Needs git, make, bash and Python 3.11 to 3.13.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo demo-large drill ui test test-data test-releases test-processes test-end-to-end test-drills test-layouts test-chaos test-journeys test-pythons test-servers servers-up servers-down servers-status test-cluster test-queues test-platform cluster-up cluster-down \
  cluster-status cluster-kill-node cluster-start-node bench bench-gpu lint docs docs-serve format lock render clean distclean

# The tests start hundreds of processes; without bytecode each of them compiles the project again.
unexport PYTHONDONTWRITEBYTECODE

VENV ?= .venv
BIN := $(VENV)/bin
# Test processes: one more than cores, because tests of pipelines and trainings also wait for the processes they start.
JOBS ?= 3
ARGS ?=
# Everything of the servers: addresses and credentials (servers.env), data, logs.
STATE ?= build/servers
# Everything of the cluster, on a plain disk; another name and network make a second one possible.
export CLUSTER_STATE ?= build/cluster
export CLUSTER_NAME ?= mla
export CLUSTER_NETWORK ?= 10.88
# Number of a node.
NODE ?= 2

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv with locked, hashed packages (prints first how much it downloads)
	@VENV=$(VENV) deployment/setup.sh

demo: setup ## raw days of 2013 to a registered model, on this machine (ARGS=--json for one JSON object)
	@$(BIN)/ml-assets demo $(ARGS)

demo-large: setup ## 40 GB of clicks to a registered model in 4 GB of memory, in hours; needs root, 160 GB of disk (ARGS="--gigabytes 10")
	@$(BIN)/python -m benchmarks.claims.pipelines.demo_large $(ARGS)

# Which: kill-rank, kill-node, hang, sigterm, corrupt-checkpoint, nan.
DRILL ?= all

drill: setup ## damage a short real training in six ways and check its recovery (DRILL=hang for one)
	@$(BIN)/ml-assets drill $(DRILL) $(ARGS)

ui: setup ## Dagster's pages and daemon together, on loopback
	@$(BIN)/ml-assets ui $(ARGS)

test: setup ## everyday tests, without servers and the tiers below; 3 to 6 minutes on two cores (ARGS="-k words")
	$(BIN)/pytest -n $(JOBS) --dist loadscope --no-loadscope-reorder $(ARGS)

test-data: setup ## sources, tables and their validation, features, training sets
	$(BIN)/pytest $(addprefix ml_assets_tests/,sources validation tables features snapshots) \
	  -n $(JOBS) --dist loadscope --no-loadscope-reorder $(ARGS)

test-releases: setup ## commands as a person types them, promotions, canaries, and the homes of earlier releases
	$(BIN)/pytest ml_assets_tests/cli ml_assets_tests/release ml_assets_tests/release_homes \
	  -n $(JOBS) --dist loadscope --no-loadscope-reorder $(ARGS)

# Folders of tests about processes that end at chosen moments.
OF_PROCESSES = training tables tuning dagster_host resources/launcher resources/pool

test-processes: setup ## trainings, studies and publishers in processes of their own, ended at chosen moments
	$(BIN)/pytest $(OF_PROCESSES:%=ml_assets_tests/%/processes) -n $(JOBS) --dist loadscope --no-loadscope-reorder $(ARGS)

test-end-to-end: setup ## whole pipelines in one process: refused, stale, planned, trained, promoted, stopped half-way
	$(BIN)/pytest $(addprefix ml_assets_tests/,components/end_to_end cli/end_to_end api/end_to_end) --timeout 1200 \
	  -n $(JOBS) --dist loadscope --no-loadscope-reorder $(ARGS)

test-layouts: setup ## trainings over several processes: layouts, precisions, scripts; needs g++ with ARGS=--nightly
	$(BIN)/pytest ml_assets_tests/layouts -n $(JOBS) --dist loadscope --no-loadscope-reorder $(ARGS)

test-drills: setup ## every drill and kills at random, of trainings and of the whole pipeline, on an idle machine
	$(BIN)/pytest ml_assets_tests/drills $(ARGS)

# Number of random kills that each chaos test has to survive, and the file of the summary.
ROUNDS ?= 30
CHAOS_REPORT ?= build/chaos.txt

test-chaos: setup ## rounds of ending processes at random moments (ROUNDS=30), and a summary of them
	$(BIN)/pytest ml_assets_tests ml_assets_tests/drills ml_assets_tests/tables/processes -m chaos --chaos-rounds $(ROUNDS) \
	  --chaos-report $(CHAOS_REPORT) --timeout 3600 -n $(JOBS) --dist worksteal $(ARGS)

test-journeys: setup ## the tour of docs/tutorial/add-a-pipeline.md typed, and clicks in Chromium; pictures in build/screenshots
	$(BIN)/pytest ml_assets_tests/browser ml_assets_tests/tour --screenshots build/screenshots \
	  -n $(JOBS) --dist loadscope $(ARGS)

test-pythons: setup ## install and test on every supported Python found here
	@deployment/test-pythons.sh

test-servers: setup ## every test on real lakeFS, S3, PostgreSQL, MLflow, Kafka, Redis; needs Go, apt, root for packages
	@VENV=$(VENV) deployment/test-servers.sh $(ARGS)

servers-up: setup ## start these six servers on loopback, built first if needed; data and addresses in STATE
	@deployment/install-system-packages.sh deployment/system-packages-servers.txt
	@$(BIN)/python -m deployment.testbed servers --state $(STATE) up

servers-status: setup ## show address, version and health of each server
	@$(BIN)/python -m deployment.testbed servers --state $(STATE) status

servers-down: setup ## end the servers, remove their data, check that nothing is left
	@$(BIN)/python -m deployment.testbed servers --state $(STATE) down

test-cluster: setup ## every test on a real Kubernetes cluster of two nodes; needs Go, apt, root
	@VENV=$(VENV) deployment/test-cluster.sh $(ARGS)

test-queues: setup ## queues with quotas (Kueue) on that cluster, and a job of 1,000 workers on simulated nodes (KWOK)
	@VENV=$(VENV) TESTS=ml_assets_tests/cluster/queues JOBS=0 deployment/test-cluster.sh $(ARGS)

test-platform: setup ## webserver, daemon, code location, runs and trainers in pods of that cluster, from the Helm chart
	@VENV=$(VENV) TESTS=ml_assets_tests/cluster/platform JOBS=0 deployment/test-cluster.sh $(ARGS)

cluster-up: setup ## start two nodes on this machine, built first if needed; prints its KUBECONFIG
	@deployment/install-system-packages.sh deployment/system-packages-cluster.txt
	@$(BIN)/python -m deployment.testbed cluster up

cluster-status: setup ## show each process and node, and the KUBECONFIG
	@$(BIN)/python -m deployment.testbed cluster status

cluster-kill-node: setup ## cut the network of node NODE and end every process in its cgroups
	@$(BIN)/python -m deployment.testbed cluster kill-node $(NODE)

cluster-start-node: setup ## switch node NODE on again
	@$(BIN)/python -m deployment.testbed cluster start-node $(NODE)

cluster-down: setup ## end the cluster, remove everything it made, check that nothing is left
	@$(BIN)/python -m deployment.testbed cluster down

bench: setup ## run the scripts of benchmarks/claims; fails if a figure misses its bar (ARGS=--quick)
	$(BIN)/python -m benchmarks.run $(ARGS)

bench-gpu: setup ## precisions, layouts, use of the card, a kill, bits, on one GPU (ARGS="--device cpu" to try it)
	@PYTHON=$(BIN)/python benchmarks/gpu/run.sh $(ARGS)

lint: setup ## style, imports between the parts, types, pages and links of the site
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/pyright
	@$(MAKE) --no-print-directory docs

docs: setup ## the searchable site of the docs, into build/site; a broken link fails
	@$(BIN)/python -m deployment.site.site_pages
	@$(BIN)/zensical build --strict --clean

docs-serve: setup ## show the site on loopback; run `make docs` again after a change
	@$(BIN)/python -m deployment.site.site_pages
	@$(BIN)/zensical serve

format: setup ## rewrite in house style
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

render: setup ## write the files in git that are made from others: the reference, measured claims, the chart (ARGS=--chart with Helm)
	@$(BIN)/python -m deployment.render $(ARGS)

lock: setup ## resolve the packages again; keeps pins that still fit (ARGS=--upgrade for newest)
	@deployment/lock.sh $(ARGS)

clean: ## delete the leftovers of tools; neither .venv nor any home
	rm -rf build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean ## delete also .venv
	rm -rf $(VENV)
