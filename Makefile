# Everything happens inside this checkout; only pip's cache and temporary files lie outside it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
GPU    := .venv-gpu
GPU_NEEDS     := import numpy, pyarrow, pydantic, torch, yaml
ENGINES       := .venv-engines
ENGINES_STAMP := $(ENGINES)/.installed

# Folders with public traces and with a published run: benchmarks/public_traces.py names the files and who has them.
TRACES ?= $(KVKNEE_TRACES)
RUNS   ?= $(KVKNEE_RUNS)
export KVKNEE_TRACES := $(if $(TRACES),$(abspath $(TRACES)))
export KVKNEE_RUNS := $(if $(RUNS),$(abspath $(RUNS)))

# What libraries would otherwise leave in the user's home.
export MPLCONFIGDIR := $(CURDIR)/$(VENV)/cache/matplotlib
export MLFLOW_DISABLE_TELEMETRY := true
export RAY_AUTH_MODE := disabled

# stage NAME COMMAND: run it, say how long it took, fail as it fails.
define stage
	@echo "== $(1)"; begin=$$(date +%s); $(2); status=$$?; \
	echo "== $(1): $$(( $$(date +%s) - begin )) s"; exit $$status
endef

.PHONY: help install engines demo test lint types unit test-browser test-engines gpu-check chaos full clean

help:
	@echo "make demo     set up .venv, then search block sizes on this machine with real tensors"
	@echo "make test     set up .venv, then lint, types and tests"
	@echo "make test-browser  the report and the MLflow UI in headless Chromium (Debian: apt-get install chromium)"
	@echo "make engines  set up $(ENGINES): vLLM for CPU and transformers, about 3.6 GB"
	@echo "make test-engines  set it up, test the engines in it, compare our scheduler with vLLM's own"
	@echo "make gpu-check  on a machine with a GPU: torch_paged's laws and decode attention by block size, in 8 minutes"
	@echo "make chaos    a sweep over an emulated cluster while things die: five seeds, about six minutes"
	@echo "make full     make test, then the slow tests and the benchmarks' targets; with TRACES=DIR RUNS=DIR also on"
	@echo "              public traces and a published run (benchmarks/public_traces.py)"

install: $(STAMP)

# torch first and alone: the CPU build where pip is configured for it, else the CUDA build of the same release.
$(STAMP): pyproject.toml constraints.txt
	@echo "== install into $(VENV)"; begin=$$(date +%s); \
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || exit 1; \
	export PIP_DISABLE_PIP_VERSION_CHECK=1; \
	$(BIN)/python -m pip install -q -c constraints.txt torch && \
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[test]' && \
	touch $(STAMP) && echo "== install into $(VENV): $$(( $$(date +%s) - begin )) s"

engines: $(ENGINES_STAMP)

# Exact releases; the wheel of vLLM last and alone, by its hash, without the requirements that it does not need here.
$(ENGINES_STAMP): requirements-engines.txt requirements-vllm.txt
	@echo "== engines into $(ENGINES): about 3.6 GB, some minutes"; begin=$$(date +%s); \
	test -x $(ENGINES)/bin/python || $(PYTHON) -m venv $(ENGINES) || exit 1; \
	export PIP_DISABLE_PIP_VERSION_CHECK=1; \
	$(ENGINES)/bin/python -m pip install -q -r requirements-engines.txt && \
	$(ENGINES)/bin/python -m pip install -q --no-deps --require-hashes -r requirements-vllm.txt && \
	touch $(ENGINES_STAMP) && echo "== engines into $(ENGINES): $$(( $$(date +%s) - begin )) s"

demo: $(STAMP)
	$(call stage,demo,$(BIN)/python -m orchestrator.demo -o runs/demo)

test: lint types unit

lint: $(STAMP)
	$(call stage,lint,$(BIN)/ruff check . && $(BIN)/ruff format --check .)

types: $(STAMP)
	$(call stage,types,$(BIN)/mypy)

unit: $(STAMP)
	$(call stage,unit,$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow and not browser")

# Chromium comes from the system: .ci/run installs Debian's where it is missing.
test-browser: $(STAMP)
	$(call stage,browser,$(BIN)/python -m pytest -q -m browser tests/browser)

# One process a file: each engine settles threads and environment for itself.
test-engines: $(ENGINES_STAMP)
	@for file in tests_engines/test_*.py; do \
	echo "== $$file"; begin=$$(date +%s); \
	$(ENGINES)/bin/python -m pytest -q -c tests_engines/pytest.ini $$file || exit 1; \
	echo "== $$file: $$(( $$(date +%s) - begin )) s"; done
	$(call stage,agreement with vLLM,$(ENGINES)/bin/python benchmarks/agreement.py --requests 30)

# With PYTHON itself where it has what is needed (kernels too: flashinfer), else in an environment of its own.
gpu-check:
	@python=$(PYTHON); $$python -c "$(GPU_NEEDS)" 2>/dev/null || { python=$(GPU)/bin/python; \
	test -x $$python || $(PYTHON) -m venv --system-site-packages $(GPU) || exit 1; \
	$$python -c "$(GPU_NEEDS)" 2>/dev/null || \
	$$python -m pip install -q -c constraints.txt torch numpy pyarrow pydantic PyYAML || exit 1; }; \
	echo "== gpu-check"; begin=$$(date +%s); $$python benchmarks/gpu_check.py; status=$$?; \
	echo "== gpu-check: $$(( $$(date +%s) - begin )) s"; exit $$status

# Alone on the machine: each starts a cluster of four nodes, and kills parts of it.
chaos: $(STAMP)
	$(call stage,chaos,$(BIN)/python -m pytest -q -s tests/orchestrator/test_chaos.py)

full: test test-engines
	$(call stage,slow,$(BIN)/python -m pytest -q -m slow)
	$(call stage,simulator speed,$(BIN)/python benchmarks/simulator_speed.py)
	$(call stage,provoked failures,$(BIN)/kvknee controls)
	$(call stage,watermark,$(BIN)/python benchmarks/watermark.py)
ifneq ($(RUNS),)
	$(call stage,truth,$(BIN)/python benchmarks/truth.py --sensitivity)
else
	@echo "== truth: left out, no RUNS=DIR with a published run (benchmarks/public_traces.py)"
endif
ifneq ($(TRACES),)
	$(call stage,first use,$(BIN)/python benchmarks/first_use.py)
else
	@echo "== first use: left out, no TRACES=DIR with public traces (benchmarks/public_traces.py)"
endif
	$(call stage,command line,$(BIN)/python benchmarks/cli_cost.py)
	$(call stage,watching torch_paged,$(BIN)/python benchmarks/watching.py)
	$(call stage,watching vLLM,$(ENGINES)/bin/python benchmarks/watching.py --engine vllm)
	$(call stage,calibrate and predict,$(BIN)/python benchmarks/calibration.py)
	$(call stage,search efficiency,$(BIN)/python benchmarks/search_efficiency.py)
	$(call stage,fork and exec,$(BIN)/python benchmarks/launching.py)
	$(call stage,orchestration,$(BIN)/python benchmarks/orchestration.py)
	$(call stage,64 slots,$(BIN)/python benchmarks/scale.py)
	$(call stage,agreement with vLLM in full,$(ENGINES)/bin/python benchmarks/agreement.py --requests 300)

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
