# Everything from a fresh machine: Python 3.11+, a C++ compiler and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
CPU    := $(shell find src/fulgur/kernels/cpu -name '*.cpp' -o -name '*.h')
CUDA   := $(shell find src/fulgur/kernels/cuda/csrc -name '*.cu' -o -name '*.cuh')
NATIVE := CMakeLists.txt $(CPU)
BUILD  := "scikit-build-core>=0.10,<1" "nanobind>=2.4,<3" "cmake>=3.26" ninja
TESTS  ?= tests

.PHONY: run test lint e2e bench wheel fuzz clean
.DELETE_ON_ERROR:

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip

# One stamp an install: the package with its compiled kernels, then what each target needs on top.
$(VENV)/.installed: pyproject.toml $(NATIVE) | $(BIN)/python
	$(BIN)/pip install -q $(BUILD)
	$(BIN)/pip install -q --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(BIN)/pip install -q --no-build-isolation -e ".[dev]"
	@touch $@

$(VENV)/.bench: $(VENV)/.installed
	$(BIN)/pip install -q --no-build-isolation -e ".[bench]"
	@touch $@

run: $(VENV)/.installed
	@$(BIN)/fulgur $(if $(shell test -t 0 && test -t 1 && echo tty),,demo)

# `make test TESTS=tests/agent` runs one part.
test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 $(TESTS) --ignore=tests/e2e

e2e: $(VENV)/.dev
	$(BIN)/python -m pytest tests/e2e

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CPU) $(CUDA)
	$(BIN)/mypy

# dist/*.whl, and whether it works where nothing of this checkout is.
wheel: $(VENV)/.installed
	rm -rf dist
	$(BIN)/pip wheel -q --no-build-isolation --no-deps -w dist .
	$(PYTHON) tests/wheel_smoke.py dist/*.whl

# The fuzzers of tests/attacks for longer than in `make test`.
fuzz: $(VENV)/.dev
	FULGUR_FUZZ_SECONDS=$${SECONDS_EACH:-120} $(BIN)/python -m pytest -n 2 --timeout=0 tests/attacks -k fuzz

bench: $(VENV)/.bench
	$(BIN)/fulgur bench engine

clean:
	rm -rf build dist $(VENV)
