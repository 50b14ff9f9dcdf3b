# Each target sets itself up: Python 3.11 or newer, make and git are all it needs.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.from-lock

.PHONY: bench help setup demo flower test chaos check audit-deps sbom lock clean

help:  ## say what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: $(STAMP)  ## make .venv from the hash-pinned lock (quick the second time)

$(STAMP): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

demo: setup  ## one signed event of 27 locales to a sandbox CMS, on this machine, with nothing else running
	$(BIN)/locseal demo

flower: setup  ## the demo, and Flower and metrics beside it until Ctrl-C
	$(BIN)/locseal demo --serve

test: setup  ## all tests; what needs a missing service is skipped (and fails where CI=true)
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal $(ARGS)

chaos: setup  ## a fleet under random faults, and a report (ARGS="--events 1000 --faults 300 --seed 7", "--sqlite")
	$(BIN)/python -m tests.chaos $(ARGS)

check: setup  ## style, format, types, import contracts, known vulnerabilities where they can be asked for
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python config/deploy/audit_dependencies.py --tolerant

audit-deps: setup  ## ask whether a locked package is known to be vulnerable; fails where there is nobody to ask
	$(BIN)/python config/deploy/audit_dependencies.py

sbom: setup  ## the bill of materials of the lock, CycloneDX 1.6, into sbom.json
	$(BIN)/python config/deploy/lock.py sbom > sbom.json

bench: setup  ## speed and cost beside hand-written peers, into docs/performance.md (needs PostgreSQL's and Redis's programs)
	$(BIN)/python -m benchmarks $(ARGS)

lock: setup  ## resolve requirements.lock anew from pyproject.toml (needs uv)
	uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-header --quiet --output-file requirements.lock

clean:  ## remove what the targets made
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .coverage
