# Everything from a fresh machine: Python 3.11+, a C++ compiler and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
CPU    := $(shell find src/fulgur/kernels/cpu -name '*.cpp' -o -name '*.h')
CUDA   := $(shell find src/fulgur/kernels/cuda/csrc -name '*.cu' -o -name '*.cuh')
NATIVE := CMakeLists.txt $(CPU)
BUILD  := "scikit-build-core>=0.10,<1" "nanobind>=2.4,<3" "cmake>=3.26" ninja
TESTS  ?= tests
PYTEST ?= $(BIN)/python -m pytest

.PHONY: run test lint arm e2e e2e-cluster e2e-editors e2e-web bench wheel fuzz clean
.DELETE_ON_ERROR:

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip

# One stamp an install: the package with its compiled kernels, then what each target needs on top.
$(VENV)/.installed: pyproject.toml $(NATIVE) | $(BIN)/python
	@echo "Fetching the packages and building the CPU kernels: a few minutes, once."
	$(BIN)/pip install -q $(BUILD)
	$(BIN)/pip install -q --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(BIN)/pip install -q --no-build-isolation -e ".[dev]"
	@touch $@

$(VENV)/.cluster: $(VENV)/.dev
	$(BIN)/pip install -q --no-build-isolation -e ".[cluster,ray]"
	@touch $@

$(VENV)/.bench: $(VENV)/.installed
	$(BIN)/pip install -q --no-build-isolation -e ".[bench]"
	@touch $@

run: $(VENV)/.installed
	@if test -t 0 && test -t 1; then exec $(BIN)/fulgur; else exec $(BIN)/fulgur demo; fi

# `make test TESTS=tests/agent` runs one part.
test: $(VENV)/.dev
	$(PYTEST) -n 2 --dist worksteal $(TESTS) --ignore=tests/e2e

e2e: $(VENV)/.dev
	$(PYTEST) tests/e2e

# PostgreSQL and Redis of this machine (Debian: postgresql, redis-server), started on sockets of their own, and Ray.
e2e-cluster: $(VENV)/.cluster
	$(PYTEST) -m cluster tests/server $(wildcard tests/e2e_cluster)

# The VS Code extension in a real code-server, driven by Chromium; screenshots in build/editors/screenshots.
e2e-editors: $(VENV)/.dev
	apps/vscode/e2e.sh

# The web app in Chromium on a scripted model; screenshots in build/web.
e2e-web: $(VENV)/.dev
	apps/web/e2e.sh

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CPU) $(CUDA)
	$(BIN)/mypy

# The ARM64 kernels under qemu-user (Debian: g++-aarch64-linux-gnu qemu-user).
arm:
	tests/kernels/cpu/arm.sh

# dist/*.whl, and whether it works where nothing of this checkout is.
wheel: $(VENV)/.installed
	rm -rf dist
	$(BIN)/pip wheel -q --no-build-isolation --no-deps -w dist .
	$(PYTHON) tests/wheel_smoke.py dist/*.whl

# The fuzzers of tests/attacks for longer than in `make test`.
fuzz: $(VENV)/.dev
	FULGUR_FUZZ_SECONDS=$${SECONDS_EACH:-120} $(PYTEST) -n 2 --timeout=0 tests/attacks -k fuzz

bench: $(VENV)/.bench
	$(BIN)/fulgur bench engine

clean:
	rm -rf build dist $(VENV)
