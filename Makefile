# Everything from a fresh machine: Python 3.11+, a C++ compiler and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
NATIVE := CMakeLists.txt $(shell find src/fulgur/kernels/cpu -name '*.cpp' -o -name '*.h')

.PHONY: run test lint e2e bench clean
.DELETE_ON_ERROR:

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip

# One stamp an install: the package with its compiled kernels, then what each target needs on top.
$(VENV)/.installed: pyproject.toml $(NATIVE) | $(BIN)/python
	$(BIN)/pip install -q "scikit-build-core>=0.10,<1" "nanobind>=2.4,<3" "cmake>=3.26" ninja
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

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 tests --ignore=tests/e2e

e2e: $(VENV)/.dev
	$(BIN)/python -m pytest tests/e2e

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(filter %.cpp %.h,$(NATIVE))
	$(BIN)/mypy

bench: $(VENV)/.bench
	$(BIN)/fulgur bench engine

clean:
	rm -rf build $(VENV)
