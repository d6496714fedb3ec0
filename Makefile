# make demo    train, test and look at small ELSA-Swin models on toy data
# make test    the tests
# Both set up .venv first; PYTHON names the Python it is made from.
PYTHON ?= python3

.PHONY: setup demo test
setup:
	@command -v $(PYTHON) >/dev/null || { echo "There is no $(PYTHON): install Python 3.10 or newer, or name one with make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) tools/setup_env.py

demo: setup
	@.venv/bin/python tools/demo.py

test: setup
	@.venv/bin/python -m pytest
