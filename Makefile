# `make run` and `make test` do all the setup. See CONTRIBUTING.md for the other targets.

PYTHON ?=
BENCH ?=
TESTS ?=
PART ?= all
QUICK ?=
# Listen addresses of `make run`: PORT or HOST:PORT. Default: 8080 and 1883, or the next free ports.
HTTP ?=
MQTT ?=
export PYTHON

BIN := .venv/bin
# npm writes this file last.
NODE := tests/node/node_modules/.package-lock.json
NODE_RED := tests/node_red/node_modules/.package-lock.json
# It compares contents, not dates, and does nothing if the console is up to date.
BUILD_CONSOLE := scripts/progress "Building the console" $(BIN)/python scripts/build_console.py

.PHONY: run test test-fast test-all check docs dist release-data format bench lock man dashboards clean

place = $(if $(findstring :,$(2))$(filter off,$(2)),$(1) $(2),$(if $(2),$(1) 127.0.0.1:$(2)))
PLACES = $(strip $(call place,--http,$(HTTP)) $(call place,--mqtt,$(MQTT)))

# Runs a service with a demo fleet. It prints its addresses and, the first time, the password of admin.
# Given ports are checked first, because setup and build take minutes.
run:
	@$(if $(PLACES),"$${PYTHON:-python3}" scripts/check_ports.py $(PLACES))
	@$(MAKE) --no-print-directory .venv/.ready-run
	$(BUILD_CONSOLE)
	$(BIN)/meshfleet serve --demo $(PLACES)

test: .venv/.ready-dev $(NODE)
	$(BUILD_CONSOLE)
	scripts/parts
	$(BIN)/pytest $(TESTS)

# Quick tests while editing: those that need no server, browser or other program.
test-fast: .venv/.ready-dev
	$(BIN)/pytest --fast $(TESTS)

# Tests that are too slow for every change: run them before a release, and before closing an issue.
test-all: .venv/.ready-dev .venv/.ready-docs .venv/.ready-homeassistant $(NODE) $(NODE_RED)
	$(BUILD_CONSOLE)
	scripts/parts all
	$(BIN)/pytest --part $(PART) $(TESTS)

check: .venv/.ready-dev
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/python scripts/check_console.py
	$(BIN)/pytest -q -n 0 tests/test_imports.py tests/test_language.py tests/test_repository.py

# The documentation site, in build/docs: python3 -m http.server --directory build/docs
docs: .venv/.ready-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# Wheel and source distribution in dist, as a release has them: built, checked, installed and tried.
dist: .venv/.ready-dist
	rm -rf dist
	$(BUILD_CONSOLE)
	scripts/progress "Packing" $(BIN)/python -m hatchling build --directory dist
	$(BIN)/twine check --strict dist/*
	scripts/progress "Installing and trying the wheel" $(BIN)/python scripts/check_dist.py dist

# Data of this version in tests/releases, which later versions must be able to upgrade. RELEASING.md says when.
release-data: .venv/.ready-dev
	scripts/parts
	$(BIN)/python -m tests.release_data

format: .venv/.ready-dev
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: .venv/.ready-dev
	$(BUILD_CONSOLE)
	$(BIN)/python -m bench $(BENCH) $(if $(QUICK),--quick)

lock: .venv/.ready-dev
	scripts/lock

# The man page is part of the repository, because a wheel is built without the packages that it documents.
man: .venv/.ready-dev
	$(BIN)/python scripts/build_man.py

dashboards: .venv/.ready-dev
	$(BIN)/python scripts/build_dashboards.py

clean:
	rm -rf .venv .venv-homeassistant .tools .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist tests/node/node_modules tests/node_red/node_modules
	rm -rf console/node_modules console/generated src/meshfleet/service/console/site

# A program of the tests with packages of its own, in .venv-homeassistant.
.venv/.ready-homeassistant: requirements/homeassistant.lock requirements/bootstrap.lock scripts/venv | .venv/.ready-dev
	scripts/progress "Installing Home Assistant for tests" scripts/venv homeassistant
	@touch $@

.venv/.ready-%: requirements/%.lock requirements/bootstrap.lock pyproject.toml scripts/venv
	scripts/progress "Installing Python packages into .venv" scripts/venv $*
	@touch $@

$(NODE): tests/node/package-lock.json | .venv/.ready-dev
	scripts/node tests/node

$(NODE_RED): tests/node_red/package-lock.json | .venv/.ready-dev
	scripts/node tests/node_red
