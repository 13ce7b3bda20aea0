# Everything runs from .venv, made from constraints.txt. See README.md.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY_TO_RUN := $(VENV)/.ready-to-run
READY := $(VENV)/.ready
# What the tests cover; a user needs none of them.
EXTRAS := moonshine,huggingface,lhotse,parquet,transformers,ngram,bleu,hub,demo,bench,ssh,ray,docs,dev
# Not compiled as a whole: that would take a minute, most of it for modules that are never imported.
INSTALL := $(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable

# Where it is set, each process would compile torch and Lightning again: three times as slow.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo docs quick test test-exhaustive test-soak soak test-recipes lint format bench test-clusters test-browser test-espnet2 clean

setup: $(READY)

$(READY_TO_RUN): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v <= (3, 13) else f"ESPnet3 needs Python 3.11 to 3.13, but $(PYTHON) is {v[0]}.{v[1]}. Name one: make $(MAKECMDGOALS) PYTHON=python3.11")'
	@echo 'Setting up $(VENV) from constraints.txt; the first time this takes a few minutes.'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) '.[demo]'
	@touch $@

# What tests import is compiled here, once; otherwise four of their processes do it at a time.
$(READY): $(READY_TO_RUN)
	$(INSTALL) '.[$(EXTRAS)]'
	$(BIN)/python -c 'import lightning.pytorch, distributed, lhotse, transformers, pyarrow, matplotlib.pyplot'
	@touch $@

# Overrides, `make demo ARGS="trainer.max_epochs=2"`, get an experiment of their own.
DEMO_TAG := $(if $(ARGS),exp_tag=training-$(firstword $(shell printf '%s' '$(subst ',,$(ARGS))' | cksum)))

demo: $(READY_TO_RUN)
	$(BIN)/python egs3/digits/asr/run.py --stages create_dataset train_tokenizer train-report \
	  --training_config conf/training.yaml --inference_config conf/inference.yaml \
	  --metrics_config conf/metrics.yaml $(DEMO_TAG) $(ARGS)

# Four at a time on two cores: a third of the tests waits for a process or a timeout.
PYTEST := $(BIN)/python -m pytest -n 4 --dist worksteal

# The inner loop: unit tests, but those of whole commands, and those that start a process which
# imports torch. Two at a time: none of them waits, and each more imports torch once more.
QUICK_IGNORED := --ignore tests/unit/cli --ignore tests/unit/test_peers.py --ignore tests/unit/test_leaks.py

quick: setup
	ESPNET3_TESTS_QUICK=1 $(PYTEST) -n 2 -q -rfE tests/unit $(QUICK_IGNORED) $(TEST_ARGS)

test: setup
	$(PYTEST) $(TEST_ARGS)

# More cases of what `make test` proves with one or a few; and its processes start for real.
test-exhaustive: setup
	ESPNET3_TESTS_COLD=1 $(PYTEST) -m exhaustive --timeout 600 $(TEST_ARGS)

# Kills at random moments, others each time, for ten minutes; SEED=... begins with a certain one.
test-soak: setup
	SEED=$(SEED) $(BIN)/python -m pytest -s -m soak $(TEST_ARGS) tests/integration/test_soak.py

# The random search of hypothesis, which `make test` leaves out: other examples each time.
soak: setup
	$(PYTEST) -m hypothesis --hypothesis-profile soak --timeout 3600 $(TEST_ARGS)

test-recipes: setup
	$(BIN)/python -m pytest -m long --timeout 1800 tests/recipes

# Two at a time, each with schedulers of its own: most tests wait for a job or a timeout.
test-clusters: setup
	tests/cluster/install.sh
	ESPNET3_CLUSTERS=1 $(BIN)/python -m pytest -n 2 --dist loadfile tests/cluster $(TEST_ARGS)

# The documentation as a site, in site/; a dead link is an error.
docs: setup
	$(BIN)/python -m docsite

test-browser: setup docs
	tests/browser/install.sh
	ESPNET3_BROWSER=1 $(BIN)/python -m pytest tests/browser $(TEST_ARGS)

# Models of ESPnet2, in an environment of their own: the package espnet asks for other versions.
ESPNET2 := .venv-espnet2

test-espnet2: $(ESPNET2)/.ready
	$(ESPNET2)/bin/python -m pytest --timeout 300 tests/espnet2 $(TEST_ARGS)

$(ESPNET2)/.ready: pyproject.toml constraints.txt constraints-espnet2.txt tests/espnet2/install.sh
	PYTHON=$(PYTHON) tests/espnet2/install.sh $(ESPNET2)
	@touch $@

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
	rm -rf $(VENV) $(ESPNET2) demo-run site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
