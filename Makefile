# make demo      train, test and look at small ELSA-Swin models on toy data
# make test      the tests
# make test-all  the tests, slow ones included
# make bench     every backbone beside its peer: time, memory and their growth
# All set up .venv first; PYTHON names the Python it is made from.
PYTHON ?= python3

.PHONY: setup demo test test-all bench
setup:
	@command -v $(PYTHON) >/dev/null || { echo "There is no $(PYTHON): install Python 3.10 or newer, or name one with make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) tools/setup_env.py

demo: setup
	@.venv/bin/python tools/demo.py

test: setup
	@.venv/bin/python -m pytest

test-all: setup
	@.venv/bin/python -m pytest -m ''

bench: setup
	@.venv/bin/python tools/benchmark.py --sizes 256x256 512x512 800x1333
