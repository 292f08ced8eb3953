# Everything happens inside this checkout; only pip's cache and temporary files lie outside it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# What libraries would otherwise leave in the user's home.
export MPLCONFIGDIR := $(CURDIR)/$(VENV)/cache/matplotlib
export MLFLOW_DISABLE_TELEMETRY := true
export RAY_AUTH_MODE := disabled

# stage NAME COMMAND: run it, say how long it took, fail as it fails.
define stage
	@echo "== $(1)"; begin=$$(date +%s); $(2); status=$$?; \
	echo "== $(1): $$(( $$(date +%s) - begin )) s"; exit $$status
endef

.PHONY: help install demo test lint types unit full clean

help:
	@echo "make demo     set up .venv, then search block sizes on this machine with real tensors"
	@echo "make test     set up .venv, then lint, types and tests"
	@echo "make full     make test, then the slow tests and the benchmarks' targets"

install: $(STAMP)

# torch first and alone: the CPU build where pip is configured for it, else the CUDA build of the same release.
$(STAMP): pyproject.toml constraints.txt
	@echo "== install into $(VENV)"; begin=$$(date +%s); \
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || exit 1; \
	export PIP_DISABLE_PIP_VERSION_CHECK=1; \
	$(BIN)/python -m pip install -q -c constraints.txt torch && \
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[test]' && \
	touch $(STAMP) && echo "== install into $(VENV): $$(( $$(date +%s) - begin )) s"

demo: $(STAMP)
	$(call stage,demo,$(BIN)/python -m orchestrator.demo -o runs/demo)

test: lint types unit

lint: $(STAMP)
	$(call stage,lint,$(BIN)/ruff check . && $(BIN)/ruff format --check .)

types: $(STAMP)
	$(call stage,types,$(BIN)/mypy)

unit: $(STAMP)
	$(call stage,unit,$(BIN)/python -m pytest -q -m "not slow and not gpu")

full: test
	$(call stage,slow,$(BIN)/python -m pytest -q -m slow)
	$(call stage,simulator speed,$(BIN)/python benchmarks/simulator_speed.py)

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
