# Everything runs from .venv, made from constraints.txt. See README.md.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
# What the demo shows and the tests cover; a user needs none of them.
EXTRAS := moonshine,huggingface,lhotse,parquet,transformers,demo,bench,dev

.PHONY: setup demo test lint format bench test-clusters clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v <= (3, 13) else f"ESPnet3 needs Python 3.11 to 3.13, but $(PYTHON) is {v[0]}.{v[1]}. Name one: make $(MAKECMDGOALS) PYTHON=python3.11")'
	@echo 'Setting up $(VENV) from constraints.txt; the first time this takes a few minutes.'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	@touch $@

demo: setup
	$(BIN)/python examples/demo.py

test: setup
	$(BIN)/python -m pytest

test-clusters: setup
	tests/cluster/install.sh
	ESPNET3_CLUSTERS=1 $(BIN)/python -m pytest tests/cluster

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) demo-run .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
