# Works with GNU make 3.81 or newer and Python 3.10 or newer; uses uv if it is installed.
PYTHON ?= python3
PYTHONS ?= 3.10 3.11 3.12 3.13
VENV := .venv
PARALLEL := -n auto --dist worksteal
export PYTHON

.DEFAULT_GOAL := help
.PHONY: help run test test-all explore check format bench compare torture mutants docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-9s %s\n", $$1, $$2}' Makefile
	@echo 'ARGS="..." is passed on by run, test, test-all, explore, bench, compare and torture: make test ARGS="-k bucket"'

run: $(VENV)/bin/ratekeeper ## run the HTTP service and the playground, at http://localhost:8080
	$(VENV)/bin/ratekeeper serve $(ARGS)

test: $(VENV)/.dev ## run the tests with branch coverage (at least 95 %); with ARGS, without coverage
	tools/servers.sh
	tools/browser.sh
	tools/nginx.sh
	tools/shells.sh
	tools/prometheus.sh
ifdef ARGS
	$(VENV)/bin/python -m pytest $(PARALLEL) $(ARGS)
else
	$(VENV)/bin/coverage erase
	$(VENV)/bin/coverage run -m pytest $(PARALLEL)
	$(VENV)/bin/coverage combine --quiet
	$(VENV)/bin/coverage report
endif

test-all: ## run the tests on every server found, with each Python from 3.10 to 3.13 that works
	tools/servers.sh
	tools/browser.sh
	tools/nginx.sh
	tools/shells.sh
	tools/prometheus.sh
	ARGS='$(PARALLEL) $(ARGS)' tools/test_all.sh $(PYTHONS)

explore: $(VENV)/.dev ## search for failures with random examples: make explore ARGS="--minutes 30 -k bucket"
	tools/servers.sh
	$(VENV)/bin/python tools/explore.py $(ARGS)

check: $(VENV)/.dev ## check format, lint and types
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	tools/node.sh
	$(VENV)/bin/pyright

format: $(VENV)/.dev ## format the code and fix what the linter can
	$(VENV)/bin/ruff check --fix-only .
	$(VENV)/bin/ruff format .

bench: .venvs/bench/.bench ## run the benchmarks, against other libraries
	tools/servers.sh
	tools/browser.sh
	tools/wrk.sh
	.venvs/bench/bin/python -m bench $(ARGS)

compare: $(VENV)/.dev ## run what users of other libraries write, beside ours: make compare ARGS="slowapi limits"
	tools/servers.sh
	$(VENV)/bin/python -m compare $(ARGS)

torture: $(VENV)/.dev ## run the drills in full: each breaks something on purpose
	$(VENV)/bin/python -m tests.torture $(ARGS)

mutants: .venvs/mutants/.mutants ## mutate the algorithms and list the mutants that no test kills
	rm -rf mutants # otherwise it runs an older copy of the tests
	HYPOTHESIS_PROFILE=mutants .venvs/mutants/bin/mutmut run
	.venvs/mutants/bin/mutmut results

docs: $(VENV)/.dev ## check the links and examples in the documents
	$(VENV)/bin/python tools/check_docs.py

clean: ## remove everything that make has created
	rm -rf .venv .venvs mutants dist .coverage .hypothesis .schemathesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Each environment is reinstalled when pyproject.toml changes.
$(VENV)/bin/ratekeeper: pyproject.toml
	tools/venv.sh $(VENV) '.[server,redis]'
	@touch $@

$(VENV)/.dev: pyproject.toml
	tools/venv.sh $(VENV) '.[dev]'
	@touch $@ $(VENV)/bin/ratekeeper

# The tests make these when they need them, beside other tests.
.venvs/celery/.celery .venvs/arq/.arq: pyproject.toml
	tools/venv.sh $(@D) '.[test-$(notdir $(@D))]'
	@touch $@

.venvs/bench/.bench: pyproject.toml
	tools/venv.sh .venvs/bench '.[bench]'
	@touch $@

.venvs/mutants/.mutants: pyproject.toml
	tools/venv.sh .venvs/mutants '.[mutants]'
	@touch $@
