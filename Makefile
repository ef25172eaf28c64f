# Set-up and checks. Needs Python 3.11 or later and make; everything else goes into $(VENV).
#
#   PYTHON   interpreter that makes the environment
#   TORCH    what pip installs for torch: a version, a wheel's path, or more pip arguments
#   JOBS     test processes
#   PROMPT   what `make demo` asks

PYTHON ?= python3
VENV   ?= .venv
TORCH  ?= torch==2.13.0
JOBS   ?= 2
PROMPT ?= Write a Python function that checks whether a number is prime, and explain it.

BIN  := $(VENV)/bin
PIP  := $(BIN)/python -m pip install --quiet --disable-pip-version-check
DEMO := smollm2-135m

# Clients that the server is tested with; each has an environment of its own, and none needs PyTorch.
CLIENTS := $(abspath $(VENV))/clients
export RECGUIDE_LM_EVAL ?= $(CLIENTS)/lm-eval/bin/lm_eval
export RECGUIDE_AIPERF  ?= $(CLIENTS)/aiperf/bin/aiperf

# One thread a process: more would fight over the cores.
test test-all test-clients: export OMP_NUM_THREADS = 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-all test-gpu clients test-clients targets lint format clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

demo: $(VENV)/.installed ## fetch the demo model and watch it draft and verify for itself
	@$(BIN)/recguide pull $(DEMO) >/dev/null
	@$(BIN)/recguide generate $(DEMO) "$(PROMPT)" --block-size 16 --max-tokens 160 --compare

test: $(VENV)/.installed-dev ## the tests that CI runs
	@$(BIN)/recguide pull $(DEMO) >/dev/null
	$(BIN)/python -m pytest -n $(JOBS)

test-all: $(VENV)/.installed-dev ## everything that runs on a CPU; recorded in tests/last-full-run.json
	@$(BIN)/recguide pull $(DEMO) >/dev/null
	$(BIN)/python -m pytest -n $(JOBS) -m 'not gpu' --timeout 1800 --junit-xml $(VENV)/full-run.xml; \
	status=$$?; $(BIN)/python tests/record.py $(VENV)/full-run.xml tests/last-full-run.json; exit $$status

test-gpu: $(VENV)/.installed-dev ## the tests that need a CUDA device
	$(BIN)/python -m pytest -m gpu

clients: $(CLIENTS)/lm-eval/.installed $(CLIENTS)/aiperf/.installed ## fetch lm-evaluation-harness and aiperf, for test-all

test-clients: clients $(VENV)/.installed-dev ## those two against the server, with the demo model
	@$(BIN)/recguide pull $(DEMO) >/dev/null
	$(BIN)/python -m pytest -m slow tests/serving/clients

targets: $(VENV)/.installed ## what every result in benchmarks/results was asked to reach, and whether it did
	@$(BIN)/python benchmarks/targets.py

lint: $(VENV)/.installed-dev ## ruff, pyright, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev ## let ruff lay the code out
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove the environment and every cache of the checkout
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than 3.11; name another one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "making the environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	@echo "installing $(TORCH), then RecGuide (a few minutes the first time)"
	@$(PIP) $(TORCH)
	@$(PIP) --editable '.[serve,bench,calibrate]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "installing what the tests need"
	@$(PIP) --editable '.[dev]'
	@touch $@

$(CLIENTS)/lm-eval/.installed: PACKAGES = 'lm-eval[api]>=0.4.11' 'transformers>=5.0'
$(CLIENTS)/aiperf/.installed: PACKAGES = 'aiperf>=0.13'
$(CLIENTS)/%/.installed: | $(BIN)/python
	@echo "making the environment of $*"
	@$(BIN)/python -m venv $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check $(PACKAGES)
	@touch $@
