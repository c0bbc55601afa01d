# `make demo` and `make test` need nothing but Linux, make, git and Python >= 3.11 with venv; the rest they fetch themselves.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# A date in the form of `date -I`: nothing that was published within the 7 days before `make lock` is taken.
BEFORE = $(shell date -u -d '7 days ago' +%F)
PYTEST := $(BIN)/pytest -q
# Tests that watch real processes share the machine's clock with whatever else runs. One that failed is run again, alone: it must pass
# then, and it is named either way.
AGAIN   = || { [ $$? = 1 ] || exit 1; echo "failed; what failed runs again, alone:"; $(PYTEST) -v -n 0 --last-failed --last-failed-no-failures none
# Hundreds of processes that start Python; without this each would compile again what it imports
export PYTHONDONTWRITEBYTECODE :=
# Asked before anything is installed; `make install` leaves it out
ASKED  := preflight

.PHONY: demo up install check types fast format test types-of-tests whole test-all escape audit bench-smoke lock preflight packages dev

demo: $(VENV)/.runtime
	$(BIN)/evals demo

up: $(VENV)/.runtime
	$(BIN)/evals up

# For what needs no sandbox of this machine: the command line, and experiments with `backend: modal`. Also on macOS.
install:
	@$(MAKE) --no-print-directory ASKED= $(VENV)/.runtime

check: dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@$(MAKE) --no-print-directory -j 2 types fast

# Side by side: the one leaves a processor idle, the other waits for processes and databases
types:
	$(BIN)/basedpyright
fast:
	$(PYTEST) -n 2 -m "not slow and not long"

format: dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: dev packages
	@$(MAKE) --no-print-directory -j 2 types-of-tests whole
types-of-tests:
	$(BIN)/basedpyright -p tests
whole:
	$(PYTEST) -n 2 -m "not long" $(AGAIN) -m "not long"; }

test-all: dev packages
	$(PYTEST) -n 2 -m long --ignore=tests/examples $(AGAIN) -m long --ignore=tests/examples; }
	$(PYTEST) -m long tests/examples $(AGAIN) -m long tests/examples; }

# What an agent that wants out tries, on each backend, as a table
escape: dev packages
	@$(BIN)/python -m tests.escape

# Has anything become slower? A minute or two; says by how much each ratio moved, and fails beyond the factor in bench/baseline.json.
bench-smoke: dev
	@$(BIN)/python bench/smoke.py

# Known vulnerabilities of the locked packages; says so where nobody can be asked
audit:
	@$(PYTHON) .ci/audit

preflight:
	@$(PYTHON) eval_pipeline/sandbox/local/preflight.py $(if $(filter 1,$(EVALS_UNSAFE_NO_ISOLATION)),--unsafe-no-isolation)

dev: $(VENV)/.dev

$(VENV)/.runtime: requirements.lock pyproject.toml | $(ASKED)
	@echo "installing into $(VENV): a minute or two, once"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

$(VENV)/.dev: requirements-dev.lock $(VENV)/.runtime
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	touch $@

# Debian packages that tests use. Without root the missing ones are named.
packages:
	@missing=""; for name in $$(cat debian-packages.txt); do dpkg -s $$name >/dev/null 2>&1 || missing="$$missing $$name"; done; \
	[ -z "$$missing" ] || { \
	  [ "$$(id -u)" = 0 ] || { echo "run as root: apt-get install -y$$missing" >&2; exit 2; }; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null; }

COMPILE := uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
  --no-strip-extras --no-header --quiet --exclude-newer $(BEFORE)

# Needs uv on the PATH.
lock:
	$(COMPILE) --extra build -o requirements.lock
	$(COMPILE) --extra build --extra dev -c requirements.lock -o requirements-dev.lock
	$(COMPILE) --extra build --extra deploy -c requirements-dev.lock -o deploy/requirements.lock
