# SPDX-License-Identifier: Apache-2.0
# What to run on a checkout. Needs make and Python 3.11, 3.12 or 3.13; everything else goes into .venv.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

AIRFLOW ?= 3.3
LOCK := requirements-$(AIRFLOW).txt
# Each version has an environment of its own, so that both live side by side.
VENV := .venv$(if $(filter-out 3.3,$(AIRFLOW)),-$(AIRFLOW))
BIN := $(VENV)/bin
STAMP := $(VENV)/installed-$(AIRFLOW)

# What each lock pins of Airflow; the rest is resolved.
PINS_3.3 := apache-airflow==3.3.2 apache-airflow-core==3.3.2 apache-airflow-task-sdk==1.3.2
PINS_3.4 := apache-airflow==3.4.0b2 apache-airflow-core==3.4.0b2 apache-airflow-task-sdk==1.4.0b2

SUITES := $(wildcard tests/unit tests/contract tests/integration)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Tests wait for servers and workers more than they compute: there may be more processes than cores.
WORKERS ?= 3
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-19s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: test
test: $(STAMP) ## Run unit, contract and integration tests; those marked slow, or without their service, are left out
	$(PYTEST) -m 'not slow' $(SUITES)

.PHONY: test-34
test-34: ## Run the same on the pre-release of Airflow 3.4, in an environment of its own
	$(MAKE) --no-print-directory AIRFLOW=3.4 test

.PHONY: tour-34
tour-34: ## Run the tour of `make demo` as a test on the pre-release of Airflow 3.4
	$(MAKE) --no-print-directory AIRFLOW=3.4 venv
	.venv-3.4/bin/python -m pytest tests/e2e/test_local_mode.py -k tour

# What knows versions, the guard, claims, fenced calls, the start of the executor, and Airflow's own scheduler.
DIFFERENCES := tests/unit/test_compat.py tests/unit/workers $(addprefix tests/integration/test_, \
    airflow_3_4.py executor_starts.py rule_10_every_call_is_judged.py scheduler_speaks.py)

.PHONY: test-34-differences
test-34-differences: ## Run on Airflow 3.4 only the tests of what differs most
	$(MAKE) --no-print-directory AIRFLOW=3.4 venv
	.venv-3.4/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m 'not slow' $(DIFFERENCES)

.PHONY: integration
integration: $(STAMP) ## Run the integration tests alone
	$(PYTEST) tests/integration

.PHONY: e2e
e2e: $(STAMP) ## Run the end-to-end tests: PostgreSQL, Redis and a cluster with a node
	$(PYTEST) --ignore=tests/e2e/compose --ignore=tests/e2e/test_rolling_upgrade.py tests/e2e

.PHONY: e2e-upgrade
e2e-upgrade: $(STAMP) ## Go from the stock executors to ours and back with 50 tasks in flight: PostgreSQL, Redis and a cluster
	DISPATCHER_TESTS_DATABASE=postgres DISPATCHER_TESTS_REQUIRE=redis,postgres,kubernetes \
	    $(BIN)/python -m pytest -o log_cli=true -o log_cli_level=INFO tests/e2e/test_rolling_upgrade.py

.PHONY: bench-kubernetes
bench-kubernetes: $(STAMP) ## Compare the creation and watching of pods with the stock executor's: PostgreSQL, Redis and a cluster
	$(BIN)/python -W ignore -m tests.benchmarks.kubernetes

.PHONY: bench-celery
bench-celery: $(STAMP) ## Compare publishing and observing with the stock CeleryExecutor's: PostgreSQL and Redis
	$(BIN)/python -W ignore -m tests.benchmarks.celery

.PHONY: soak
soak: $(STAMP) ## Run the Celery half for MINUTES=20, with Redis restarted and workers killed: PostgreSQL and redis-server
	$(BIN)/python -W ignore -m tests.benchmarks.soak --minutes $(or $(MINUTES),20)

.PHONY: chaos
chaos: $(STAMP) ## Kill everything at random points of SEED=n for MINUTES=5, and check: PostgreSQL, redis-server and a node
	$(BIN)/python -W ignore -m tests.chaos $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES)) \
	    $(if $(TASKS),--tasks $(TASKS)) $(if $(KEEP),--keep $(KEEP))

.PHONY: lint
lint: $(STAMP) ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

.PHONY: types
types: $(STAMP) ## Check types
	$(BIN)/mypy

.PHONY: imports
imports: $(STAMP) ## Check the direction of imports
	$(BIN)/lint-imports

.PHONY: demo
demo: $(STAMP) ## Run the tour on this machine: Airflow, broker, cluster, worker, and stale launches refused
	$(BIN)/python -m dispatcher.local.demo

.PHONY: up
up: $(STAMP) ## Leave the demo's Airflow running, with its UI, until Ctrl-C
	$(BIN)/python -m dispatcher.local.up

.PHONY: env
env: ## Write .env, which docker compose needs, with new secrets; what an .env has already is kept
	@set -e; mkdir -p dags; umask 077; source=.env; test -e $$source || source=.env.example; \
	random() { head -c $$1 /dev/urandom | od -An -v -tx1 | tr -d ' \n'; }; \
	while IFS= read -r line; do \
	    case $$line in \
	        ADMIN_PASSWORD=) line=$$line$$(random 12) ;; \
	        FERNET_KEY=) line=$$line$$(head -c 32 /dev/urandom | base64 | tr '+/' '-_') ;; \
	        [A-Z]*=) line=$$line$$(random 32) ;; \
	    esac; \
	    printf '%s\n' "$$line"; \
	done <$$source >.env.new; \
	mv .env.new .env; \
	echo "every secret in .env is set; the UI's user is admin, its password ADMIN_PASSWORD in .env"

.PHONY: e2e-compose
e2e-compose: $(STAMP) ## Run the end-to-end test of docker-compose.yml: Docker, with the base images it names
	DISPATCHER_TESTS_REQUIRE=docker $(BIN)/python -m pytest -s tests/e2e/compose

.PHONY: lock
lock: $(STAMP) requirements-3.3.txt.lock requirements-3.4.txt.lock ## Remake the pinned requirements; UPGRADE=--upgrade takes newer versions

.PHONY: requirements-%.txt.lock
requirements-%.txt.lock:
	printf '%s\n' $(PINS_$*) | $(BIN)/uv pip compile --quiet --universal --python-version 3.11 \
	    --no-annotate --no-emit-index-url --custom-compile-command 'make lock' $(UPGRADE) \
	    --all-extras -o requirements-$*.txt pyproject.toml -

.PHONY: clean
clean: ## Remove the environments, caches and build results
	rm -rf .venv .venv-3.4 build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find dispatcher workers tests -name __pycache__ -prune -exec rm -rf {} +

.PHONY: venv
venv: $(STAMP)

# The pinned uv installs the lock in seconds; pip is there for where uv cannot reach the package index.
# Bytecode is made here, once: where PYTHONDONTWRITEBYTECODE is set, as in many containers, every start of
# Airflow would compile all of it anew, which takes longer than the start itself.
# Candidates are run, not just looked up: a shim on PATH may stand for a version that is not selected.
$(STAMP): $(LOCK) pyproject.toml
	@set -e; \
	if ! [ -x $(BIN)/python ]; then \
	    for candidate in $(or $(PYTHON),python3.13 python3.12 python3.11 python3); do \
	        if $$candidate -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' \
	            2>/dev/null; then found=$$candidate; break; fi; \
	    done; \
	    if [ -z "$$found" ]; then \
	        echo "error: no Python 3.11, 3.12 or 3.13 with the venv module was found (on Debian and" >&2; \
	        echo "       Ubuntu the module is in the package python3-venv); install one," >&2; \
	        echo "       or name it: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; exit 1; \
	    fi; \
	    echo "making $(VENV) with $$($$found --version); installing into it takes a minute or two"; \
	    $$found -m venv $(VENV); \
	fi
	$(PIP) "$$(grep '^uv==' $(LOCK))"
	$(BIN)/uv pip install --quiet --system-certs --compile-bytecode --python $(BIN)/python -r $(LOCK) || $(PIP) -r $(LOCK)
	$(PIP) --no-deps --no-build-isolation -e .
	@rm -f $(VENV)/installed-*; touch $@
