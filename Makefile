# `make help` lists the targets. Each sets up what it needs.
#
#   make bench ARGS="--model conv --backends onnx,tensorrt"

PYTHON ?= python3
VENV   ?= .venv
ARGS   ?=
# constraints-oldest.txt and constraints-newest.txt have the ends of the range of torch.
CONSTRAINTS ?= constraints.txt
# Quantised precisions in torch. torchao does not fit the oldest torch, and transformers would fail beside it.
TORCHAO ?= $(if $(findstring oldest,$(CONSTRAINTS)),,$(COMMA)torchao)
COMMA  := ,
# `make fast` tests what differs from this commit.
SINCE  ?= main
# The CUDA stack if the driver answers, else the CPU's.
EXTRA  ?= $(shell nvidia-smi >/dev/null 2>&1 && echo cuda || echo cpu)
BIN    := $(VENV)/bin
# Python's own compiler uses all cores, and pip's only one. What tests hardly use is compiled where it is imported.
UNUSED := diffusers|selenium|mypyc?|fontTools|debugpy|sklearn|IPython|sentence_transformers|tornado|jedi|torch/testing|$\
	torchao/prototype|sympy/physics|pygments/lexers|onnxruntime/transformers|onnxruntime_genai/models
PIP     := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c $(CONSTRAINTS)
# Distributions of this checkout that Bakeoff finds by their entry points.
PLUGINS := -e plugins/hotpath
COMPILE := $(BIN)/python -m compileall -qq -j 0 -x '/tests/|/transformers/models/|/site-packages/($(UNUSED))/' $(VENV)/lib || true
# The version that the pinned torch needs on CUDA. Torch's CPU build comes without Triton.
TRITON := triton==3.7.1

# Each of the many processes would compile what it imports again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help bench test test-all fast lint types pytest schema docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo 'Variables: ARGS="..." for bench and pytest, PYTHON=python3.12, VENV=.venv, EXTRA=cpu or cuda'

bench: $(VENV)/.ready-$(EXTRA) ## compare the template models, or what ARGS asks for
	$(BIN)/python runner.py run $(ARGS)

test: lint types pytest ## all that CI checks

test-all: $(if $(findstring cuda,$(EXTRA)),,$(VENV)/.ready-triton) ## what CI checks, and the slow tests, such as every mode of every compiler: before a release
	$(MAKE) test ARGS='-m "not container" $(ARGS)'

fast: lint types ## within a minute: lint, types, and the tests of what changed since main
	$(BIN)/python -m pytest --quiet --numprocesses 2 --dist loadfile $$($(BIN)/python -m tests.support.changed $(SINCE))

lint: $(VENV)/.ready-$(EXTRA)-test ## ruff, and the directions of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo

types: $(VENV)/.ready-$(EXTRA)-test ## mypy --strict
	$(BIN)/mypy

pytest: $(VENV)/.ready-$(EXTRA)-test $(VENV)/.compiled ## the tests, or what ARGS selects
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 3 --dist loadfile --no-loadscope-reorder $(ARGS)

schema: $(VENV)/.ready-$(EXTRA) ## write the schema of reports again, after a change of records
	$(BIN)/python -c "from bakeoff.records.report_file import json_schema; print(json_schema(), end='')" > schema.new
	mv schema.new bakeoff/records/report.schema.json

docs: $(VENV)/bin/python ## build the site of the documentation, with the API reference, into site/
	$(PIP) "mkdocs-material>=9.6" "mkdocstrings[python]>=0.29" "mike>=2.1"
	$(BIN)/mkdocs build --strict

# The pip of Python 3.11 takes half as long again to choose versions.
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info < (3, 14) else "Bakeoff needs Python 3.11, 3.12 or 3.13 and found " + sys.version.split()[0] + ": make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) "pip>=25.3"

# Torch is installed first, so that an extra which asks for a range of it finds the pinned one. Pip takes one core only.
$(VENV)/.ready-$(EXTRA): pyproject.toml plugins/hotpath/pyproject.toml $(CONSTRAINTS) | $(VENV)/bin/python
	$(PIP) torch
	$(PIP) -e ".[$(EXTRA)$(TORCHAO)]" $(PLUGINS)
	$(COMPILE)
	touch $@

$(VENV)/.ready-$(EXTRA)-test: pyproject.toml plugins/hotpath/pyproject.toml $(CONSTRAINTS) | $(VENV)/bin/python
	$(PIP) torch
	$(COMPILE) & $(PIP) -e ".[$(EXTRA)$(TORCHAO),test]" $(PLUGINS) || exit 1; wait
	touch $@ $(VENV)/.ready-$(EXTRA)

# What the tests import is compiled beside mypy, which reads sources.
$(VENV)/.compiled: $(VENV)/.ready-$(EXTRA)-test
	$(COMPILE)
	touch $@

# Triton for the tests that run our kernels in its interpreter. It lies outside of the environment, where torch would use
# it. If it does not install, those tests are skipped, and the next `make` tries again.
$(VENV)/.ready-triton: constraints.txt | $(VENV)/bin/python
	rm -rf $(VENV)/triton
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --target $(VENV)/triton \
		$(TRITON) && touch $@ || echo "$(TRITON) does not install here: its interpreter's tests will be skipped"

clean: ## remove .venv and all caches
	rm -rf $(VENV) build site *.egg-info plugins/*/src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
