# Every target does its own set-up: `make serve` and `make test` are enough on a fresh machine.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.octavo-installed
SOURCES := pyproject.toml CMakeLists.txt $(wildcard native/*.cpp native/*.hpp native/*.h)

# Owners of state: every branch of these must be walked by some test.
CORE   := src/octavo/core/*,src/octavo/kv/*,src/octavo/scheduler/*,src/octavo/engine/*

.PHONY: setup serve test slow simulate coverage lint check clean

setup: $(STAMP)

$(STAMP): $(SOURCES)
	@sh scripts/setup.sh "$(PYTHON)" "$(VENV)"
	@touch $(STAMP)

serve: setup
	@$(BIN)/octavo serve smollm2

test: setup
	@$(BIN)/octavo pull smollm2
	$(BIN)/python -m pytest

slow: setup
	$(BIN)/python -m pytest -m slow --timeout 3600

# Three hundred thousand simulated steps, two processes at a time.
simulate: setup
	@printf '%s\n' 100 105 110 | xargs -P 2 -I{} $(BIN)/python -m pytest -q -m slow --timeout 3600 \
	  'tests/sim/test_simulator.py::test_three_hundred_thousand_steps[{}]'

# The tests again, slower, and that they walk enough. Other processes are not counted.
coverage: setup
	@$(BIN)/octavo pull smollm2
	$(BIN)/python -m coverage run -m pytest
	$(BIN)/python -m coverage report --include '$(CORE)' --fail-under 100
	$(BIN)/python -m coverage report --fail-under 90

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

check: lint test

clean:
	rm -rf build $(VENV)
