# Every target sets itself up: the environment is made when pyproject.toml or constraints.txt change.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# The first interpreter that runs and is new enough; `make PYTHON=… TARGET` names another.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& { echo "$$python"; break; }; done)
BIN := .venv/bin
READY := .venv/.installed

# One thread per process and a process per core: small tensors gain nothing from BLAS's own threads.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --dist loadfile \
	--numprocesses $(or $(JOBS),auto) --maxprocesses 8

# What `make reliability` counts, slow tests included; tests/stress/report.py names the same.
COUNTED := tests/stress tests/lake tests/fuzz tests/sql/test_untrusted.py

.PHONY: help demo test test-slow test-random check format bench reliability schemas wheel-test clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

demo: $(READY) ## train two nano models into demo-lake/ and ask about them (one to four minutes after set-up)
	$(BIN)/pico demo $(ARGS)

test: $(READY) ## run the tests, without the slow ones; ARGS="-k codec" narrows, JOBS=1 runs in turn
	$(PYTEST) -m "not slow" $(ARGS)

test-slow: $(READY) ## run the slow tests alone, but for those that `make reliability` runs (half an hour)
	$(PYTEST) -m slow $(COUNTED:%=--ignore=%) $(ARGS)

test-random: $(READY) ## run the tests in random order (SEED=… repeats one); no test leans on another
	$(PYTEST) -m "not slow" --random-order $(if $(SEED),--random-order-seed=$(SEED)) $(ARGS)

check: $(READY) ## formatting, lint, types, floors, house rules and documents
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest --quiet tests/contract/test_house_rules.py tests/contract/test_docs.py

format: $(READY) ## format the code and apply ruff's safe fixes
	$(BIN)/ruff check --fix-only --quiet
	$(BIN)/ruff format

bench: $(READY) ## run the benchmarks and rewrite tests/benchmarks/RESULTS.md
	$(BIN)/python -m tests.benchmarks.run_all $(ARGS)

reliability: $(READY) ## count crashes, kills, races, faults and attacks survived; rewrite tests/reliability.md
	$(BIN)/python -m tests.stress.report $(ARGS)

schemas: $(READY) ## write schemas/README.md and COMPONENTS.md
	$(BIN)/python -c 'from pico import schema; print(schema.markdown(), end="")' > schemas/README.md
	$(BIN)/python -c 'from pico.models import page; print(page.markdown(), end="")' > schemas/COMPONENTS.md

wheel-test: $(READY) ## read a lake from an installed wheel that has no torch
	.ci/wheel-test

clean: ## remove the environment, caches, builds and what `make demo` wrote
	rm -rf .venv build dist demo-lake demo-lake-report.html *.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 or newer here; name one:" \
		"make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@echo "Making .venv with $(PYTHON) (a few minutes: torch is large)"
	@"$(PYTHON)" -m venv .venv
	@$(BIN)/python -m pip install -qq --disable-pip-version-check \
		--constraint constraints.txt --editable '.[dev]'
	@touch $@
