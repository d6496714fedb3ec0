# make demo      train, test and look at small ELSA-Swin models on toy data
# make test      the tests
# make test-all  the tests, slow ones included
# make bench     every backbone beside its peer: time, memory and their growth
# All set up an environment first; PYTHON names the Python it is made from, STACK the packages: onedl, in .venv, or
# openmmlab, OpenMMLab's own last releases, in .venv-openmmlab.
PYTHON ?= python3
STACK ?= onedl
export STACK
SUFFIX = $(patsubst %,-%,$(filter-out onedl,$(STACK)))
RUN = .venv$(SUFFIX)/bin/python
PYTEST = $(RUN) -m pytest -n logical --maxprocesses 4 --dist worksteal

.PHONY: setup demo test test-all bench
setup:
	@command -v $(PYTHON) >/dev/null || { echo "There is no $(PYTHON): install Python 3.10 or newer, or name one with make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) tools/dev/setup_env.py

demo: setup
	@$(RUN) tools/dev/demo.py --work-dir work_dirs/demo$(SUFFIX)

# A process per core: the tests' models are too small for threads to share.
test test-all: export OMP_NUM_THREADS = 1
test: setup
	@$(PYTEST)

test-all: setup
	@$(PYTEST) -m ''

bench: setup
	@$(RUN) tools/benchmark.py --sizes 256x256 512x512 800x1333 --out work_dirs/benchmark$(SUFFIX)
