# make demo · make test · make lint · make clean
# Each makes .venv and installs what it needs when that is missing or pyproject.toml has changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Twice quiet: errors are shown, warnings about indexes are not.
QUIET := --quiet --quiet --disable-pip-version-check
# One process per core with one thread each: more threads than cores only wait for each other.
WORKERS ?= 2
FAST := not slow and not gpu and not network and not redis

# Nothing is fetched from a model hub: weights and data come from pip.
export HF_HUB_OFFLINE := 1

.PHONY: demo test lint clean
.DEFAULT_GOAL := test

demo: $(VENV)/.demo-installed
	@$(BIN)/python train.py experiment=demo

# Closes with pytest's summary line.
test: lint
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) -m "$(FAST)"

lint: $(VENV)/.dev-installed
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

# Keeps .venv (minutes to make again) and outputs/ (runs are yours); remove those by hand.
clean:
	@rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

$(VENV)/.demo-installed: pyproject.toml | $(BIN)/python
	@$(call install,demo)
	@touch $@

$(VENV)/.dev-installed: pyproject.toml | $(BIN)/python
	@$(call install,demo$(comma)dev)
	@touch $(VENV)/.demo-installed $@

# Debian without python3-venv has no ensurepip: there the outer pip fills the venv.
# A half-made venv is removed, else the next call would take it for a whole one.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Python 3.11 or newer is needed, $(PYTHON) is $$($(PYTHON) -V 2>&1); name one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@if $(PYTHON) -c 'import ensurepip' 2>/dev/null; then $(PYTHON) -m venv $(VENV); else \
		$(PYTHON) -m venv --without-pip $(VENV) && \
		$(PYTHON) -m pip --python $@ install $(QUIET) pip; fi || { \
		rm -rf $(VENV); echo "cannot make $(VENV); on Debian: apt-get install python3-venv" >&2; exit 1; }

comma := ,

# After installing: are these packages ours, seen from another folder? A distribution that owns a
# top-level `data` would come before an editable install, and imports would fail far from the cause.
define install
echo "installing keynet-cache[$(1)] into $(VENV) (torch is large, about 2 minutes the first time)" && \
$(BIN)/python -m pip install $(QUIET) -e '.[$(1)]' && \
cd / && '$(CURDIR)'/$(BIN)/python -P -c "$$SHADOW_CHECK" '$(CURDIR)'
endef

define SHADOW_CHECK
import importlib.util, pathlib, sys
root = pathlib.Path(sys.argv[1]).resolve()
for name in ("keynet", "aligners", "data", "distill"):
    spec = importlib.util.find_spec(name)
    places = [spec.origin, *(spec.submodule_search_locations or [])] if spec else []
    found = pathlib.Path(next((place for place in places if place), "nothing"))
    if not found.resolve().is_relative_to(root / name):
        sys.exit(f"import {name} finds {found}, expected {root / name}: uninstall the distribution that owns it")
endef
export SHADOW_CHECK
