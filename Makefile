# make demo   installs, then teaches a 135M model to use a calculator tool, on your CPU
# make test   installs, then checks everything: ruff, mypy --strict, import contracts, tests
# make long   the tests of whole runs that are too long for make test; CI runs both
# make verify what takes long: slow tests and benchmarks; by hand, on a quiet machine

VENV   ?= .venv
SGLANG ?= .venv-sglang
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
            $$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
              2>/dev/null && echo $$python && break; done)
BIN    := $(VENV)/bin
# Processes that tests run in: one more than cores, since many tests wait for processes of their own. Two of them
# used half of two cores.
WORKERS ?= 3
# A module stays in one process, since its fixtures may be whole runs; tests/conftest.py orders modules.
SPREAD := --dist loadscope --no-loadscope-reorder
CODE   := areal_sdk tests examples plugins benchmarks scripts
# Each process collects all modules that it is given, which takes a slow machine a minute.
WITH_LONG = $(shell grep -rl 'mark\.long' tests plugins --include='test_*.py')

# One torch thread a process: two gain a little on a quiet machine and collapse on a busy one.
export OMP_NUM_THREADS := 1
# Where bytecode is not kept, each of the processes that tests start would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check lint style types fast long coverage verify docs install sglang-cpu sglang-tests clean

demo: $(VENV)/installed-train
	$(BIN)/areal-sdk train examples/agents/calculator.py --config examples/agents/calculator.toml

test: install check

check: lint fast

fast:
	$(BIN)/pytest -q --numprocesses $(WORKERS) $(SPREAD) -m "not long and not slow and not gpu"

long: install
	$(BIN)/pytest -q --numprocesses $(WORKERS) $(SPREAD) -m "long and not slow and not gpu" $(WITH_LONG)

lint: style types

# Seconds, and no torch.
style:
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/lint-imports
	$(BIN)/python scripts/house.py --check

types:
	$(BIN)/mypy

# Lines and branches that tests run, by folder. make coverage COVER="tests/gateway tests/config" for some.
COVER ?= tests
coverage: install
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -q --numprocesses $(WORKERS) $(SPREAD) -m "not long and not slow and not gpu" $(COVER)
	$(BIN)/coverage combine --quiet
	mkdir -p build && $(BIN)/coverage json --quiet -o build/coverage.json
	$(BIN)/python scripts/coverage_table.py build/coverage.json

verify: export AREAL_SDK_SGLANG_ENV = $(abspath $(SGLANG))
verify: install sglang-cpu
	$(BIN)/pytest -q -m slow
	for program in benchmarks/*.py; do \
	  grep -q __main__ $$program || continue; echo "== $$program"; \
	  $(BIN)/python $$program || exit 1; done
	$(BIN)/python scripts/sglang_soak.py
	$(BIN)/python scripts/clients/run.py
	$(BIN)/python scripts/clients/suites.py
	rm -rf build/wheels && $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir build/wheels .
	PYTHON=$(BIN)/python bash scripts/plugin_path.sh build/wheels/areal_sdk-*.whl
	PYTHON=$(BIN)/python bash scripts/stranger_path.sh build/wheels/areal_sdk-*.whl

docs: install
	$(BIN)/python scripts/generate_docs.py

# SGLang in an environment of its own, for a machine without a GPU; its tests run once it is there.
sglang-cpu: install
	$(BIN)/areal-sdk engine install sglang --cpu --into $(SGLANG)

sglang-tests: export AREAL_SDK_SGLANG_ENV = $(abspath $(SGLANG))
sglang-tests:
	$(BIN)/pytest -q tests/backends/sglang -m "not slow and not gpu"

install: $(VENV)/installed

# Both install again when what is to be installed has changed, and only then.
CONSTRAINTS ?= constraints.txt
PIP_INSTALL = $(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS)
SIZE        = a few minutes and about $(1) GB, some more where torch comes with CUDA

# Their libraries are large, so their tests run where `make install` did not make the environment: CI
# tests each plugin's wheel in one of its own.
HEAVY   = $(patsubst %,plugins/areal-sdk-%/pyproject.toml,agentdojo reasoning-gym textarena)
PLUGINS = $(wildcard plugins/*/pyproject.toml)
editable = $(patsubst %/pyproject.toml,--editable %,$(1))

$(VENV)/installed: pyproject.toml constraints.txt plugins/*/pyproject.toml | $(BIN)/python
	@echo "installing areal-sdk, its plugins, torch and the checks into $(VENV): $(call SIZE,1.7)"
	$(PIP_INSTALL) --editable ".[train,dev]" $(call editable,$(filter-out $(HEAVY),$(PLUGINS)))
	$(PIP_INSTALL) --no-deps $(call editable,$(HEAVY))
	touch $@ $(VENV)/installed-train

# What running needs, without the checks and the plugins.
$(VENV)/installed-train: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing areal-sdk and torch into $(VENV): $(call SIZE,1.4)"
	$(PIP_INSTALL) --editable ".[train]"
	touch $@

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "no Python 3.11 to 3.13 found: make PYTHON=/path/to/python"; exit 2; }
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
