# Everything works from a fresh clone: what a target needs is installed into .venv first, and again only when
# pyproject.toml or constraints.txt has changed. Another interpreter: make clean test PYTHON=python3.12

PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help install demo test check format bench chaos constraints clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(INSTALLED) ## Build .venv with everything in it

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c '$(SUPPORTED)' || \
		{ echo "celery-llama needs Python 3.11 to 3.14, '$(PYTHON)' is not: try PYTHON=python3.12" >&2; exit 2; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV); the first time, llama.cpp is compiled, which takes a few minutes."
	@$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]' || \
		{ command -v c++ >/dev/null || echo "A C++ compiler is needed (package g++, or Xcode's tools)." >&2; exit 1; }
	@touch $@

demo: $(INSTALLED) ## Server, model, worker and Flower; a handful of prompts, their tokens side by side
	@$(BIN)/celery-llama-worker demo $(ARGS)

test: check ## Lint, types, then unit, integration and end-to-end tests (ARGS="-k name" for pytest)
	$(BIN)/pytest $(ARGS)

check: $(INSTALLED) ## Lint, format, types and imports, without changing anything
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(INSTALLED) ## Fix and format the code; write the README's and the protocol's tables, and the JSON Schemas
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format
	$(BIN)/python -m docs.settings_table
	$(BIN)/python -m docs.field_tables
	$(BIN)/python -m docs.json_schemas
	$(BIN)/python -m docs.typed_fields

bench: $(INSTALLED) ## Measure this machine
	$(BIN)/python -m bench $(ARGS)

chaos: $(INSTALLED) ## Kill workers, connections and servers at random while jobs run, then count
	$(BIN)/python -m tests.chaos $(ARGS)

constraints: ## Take the newest versions and pin them in constraints.txt
	rm -rf build/constraints
	$(PYTHON) -m venv build/constraints
	build/constraints/bin/pip install --quiet --editable '.[dev]'
	{ echo "# Every package of the development environment, pinned. Written by 'make constraints'."; \
		build/constraints/bin/pip freeze --exclude-editable; } > constraints.txt

clean: ## Remove .venv and everything that was built
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
