# Needs Python 3.11 (or later) and make, nothing else. Every target makes its own virtual environment when there is none.

PYTHON ?= $(shell command -v python3.11 || echo python3)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
STAMPS := $(VENV)/.stamps
SOURCES := planner solver profiles_db api runtime_client

.DEFAULT_GOAL := help
.PHONY: help demo install test verify-program verify-search verify-http verify-layout verify-durability verify-nvme verify-regeneration verify-load verify-network check format schema screenshots clean verify-client

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## ?/\1#/' | awk -F'#' '{printf "  make %-19s %s\n", $$1, $$2}'

demo: $(STAMPS)/cli ## Plan Llama-3-8B on 8 x H100 and print why (no torch, no GPU)
	@$(BIN)/shardwright plan llama-3-8b h100-8 --seq 4096 --global-batch 64

install: $(STAMPS)/dev ## Make the virtual environment for development

test: $(STAMPS)/dev ## Run the tests
	@$(BIN)/python -m pytest -n 2 --dist loadfile $(PYTEST_ARGS)

verify-program: $(STAMPS)/dev ## Compare predicted programs with the real FSDP2 code (resumable, VERIFY_ARGS=--again)
	@$(BIN)/python -m benchmarks.program_matrix $(VERIFY_ARGS)

verify-search: $(STAMPS)/dev ## Compare plans with brute force on random small requests (resumable)
	@$(BIN)/python -m benchmarks.verify_search $(VERIFY_ARGS)

verify-http: $(STAMPS)/dev ## Send 10,000 hostile bodies to every operation of the service
	@$(BIN)/python -m benchmarks.hostile_bodies $(VERIFY_ARGS)

verify-regeneration: $(STAMPS)/dev ## Change a cluster under 1,000 plans, with kills (VERIFY_ARGS="--plans 50")
	@$(BIN)/python -m benchmarks.regeneration $(VERIFY_ARGS)

verify-load: $(STAMPS)/dev ## Load a service: known plans, new ones at once, memory (VERIFY_ARGS="--seconds 1")
	@$(BIN)/python -m benchmarks.load $(VERIFY_ARGS)

verify-network: $(STAMPS)/dev ## Train on ranks behind slow links, against predictions (root, resumable, VERIFY_ARGS="--megabits 500")
	@$(BIN)/python -W ignore -m benchmarks.network $(VERIFY_ARGS)

verify-layout: $(STAMPS)/dev ## Compare layouts with exhaustive search on random small problems (resumable)
	@$(BIN)/python -m benchmarks.verify_layout $(VERIFY_ARGS)

verify-client: $(STAMPS)/dev ## Train by every knob of a plan on 2 and 4 ranks: weights and collectives (resumable)
	@$(BIN)/python -m benchmarks.verify_client $(VERIFY_ARGS)

verify-durability: $(STAMPS)/dev ## Kill every process of a service at random moments (resumable)
	@$(BIN)/python -m benchmarks.verify_durability $(VERIFY_ARGS)

verify-nvme: $(STAMPS)/dev ## Kill a job at random moments that writes optimizer state to a disk (resumable)
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.verify_nvme $(VERIFY_ARGS)

check: $(STAMPS)/dev ## Lint, format check, types, import rules, JSON schemas, vendored scripts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python scripts/export_schema.py --check
	@$(BIN)/python scripts/vendor_scripts.py --check

format: $(STAMPS)/dev ## Format and mend what can be mended
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

schema: $(STAMPS)/cli ## Write docs/schema/*.json
	@$(BIN)/python scripts/export_schema.py

screenshots: $(STAMPS)/dev ## Take pictures of every page of the dashboard (needs chromium)
	@$(BIN)/python -m scripts.screenshots out/screenshots

clean: ## Remove the virtual environment, caches and build output
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find $(SOURCES) tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps remember what is installed, so that nothing is installed twice until these files change.
$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is older than Python 3.11; say which one to use: make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/cli: pyproject.toml .ci/constraints.txt | $(STAMPS)/venv
	$(PIP) install --quiet --constraint .ci/constraints.txt --editable '.[cli]'
	@touch $@

$(STAMPS)/dev: pyproject.toml .ci/constraints.txt | $(STAMPS)/venv
	$(PIP) install --quiet --constraint .ci/constraints.txt --editable '.[dev]'
	@touch $(STAMPS)/cli $@
