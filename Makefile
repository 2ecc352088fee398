# SPDX-License-Identifier: Apache-2.0
# `make help` lists the targets. Needs Python 3.11 with headers and venv, g++ and make; no root.
# Set-up steps leave stamps in .venv, so that a second run starts at once.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3.11
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
MODEL := models/SmolLM2-135M-Instruct.Q4_1.gguf
CXX_SOURCES = $(shell find fdspec -name '*.cc' -o -name '*.h')

.PHONY: help demo serve test test-full lint unit format model build clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: build model ## chat with a real model, with and without speculation, and end
	@$(BIN)/python -m scripts.demo

serve: build model ## the demo's servers, until Ctrl-C
	@$(BIN)/python -m scripts.demo --serve

test: lint unit ## format, lint, types and the quick tests

test-full: lint build model .venv/.test ## the same with every long test
	$(BIN)/pytest -m "full or not full"

lint: .venv/.test ## format, lint, types, spelling
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	@echo $(BIN)/clang-format --dry-run --Werror
	@$(BIN)/clang-format --dry-run --Werror $(CXX_SOURCES)
	$(BIN)/codespell
	$(BIN)/mypy

unit: build model .venv/.test ## the quick tests
	$(BIN)/pytest

format: .venv/.test ## format Python and C++
	$(BIN)/ruff format
	$(BIN)/ruff check --fix
	$(BIN)/clang-format -i $(CXX_SOURCES)

model: .venv/.demo ## bring the demo model into models/
	@[[ -f $(MODEL) ]] || $(BIN)/python -m scripts.fetch_model

build: .venv/.demo ## compile the kernels
	@compgen -G 'fdspec/ops/_core*.so' >/dev/null || echo 'compiling the kernels; this takes some minutes once'
	@$(BIN)/python -m fdspec.ops.build

clean: ## remove what was built; keeps .venv and models
	rm -rf build dist *.egg-info fdspec/ops/_core*.so
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find fdspec tests scripts benchmarks -name __pycache__ -prune -exec rm -rf {} +

.venv/.created:
	@scripts/check_prerequisites.sh $(PYTHON)
	$(PYTHON) -m venv .venv
	@touch $@

.venv/.demo: requirements/demo.txt | .venv/.created
	$(PIP) install -r requirements/demo.txt
	@touch $@

.venv/.test: requirements/test.txt requirements/demo.txt | .venv/.demo
	$(PIP) install -r requirements/test.txt
	@touch $@
