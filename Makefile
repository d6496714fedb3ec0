# make demo      train and test small models on images made on the spot, and draw what they predict
# make test      run the fast tests
# make test-all  run all tests
# make bench     measure time and memory of each backbone beside a known one. DEVICE=cuda: on a GPU, eager and compiled
# make gpu-check check and measure on a GPU, in 10 minutes at most: work_dirs/gpu_check/results.md. PHOTOS=FOLDER: on real photos
# make compare   train small forms of all backbones, and compare what they learn: projects/lab/docs/learning.md
# make real      train small forms of all backbones on real photos: projects/lab/configs/real/README.md. SIZE=full: those of the papers
# make lint      check code style with ruff, which folder imports which, and the types that users see
# make zoo       write docs/model_zoo.md and its plots from the metafiles in configs/
# make docs      write the site to work_dirs/site: it executes the notebooks and checks every link
# make setup     build the environment; every other target does this first
#
# PYTHON=python3.11 names the Python that the environment is built from. The default is that of the environment, or else python3.
# JOBS=8 trains 8 models of make compare side by side. The default is 2.
# STACK=openmmlab uses OpenMMLab's own last releases, in .venv-openmmlab. The default is onedl, in .venv.
# MMCV_OPS=compiled compiles MMCV's operators: 5 to 15 minutes on 2 cores. The default is projects/mmcv_ops.
PYTHON ?= $(or $(wildcard $(shell sed -n 's|^home = \(.*\)|\1/python3|p' .venv$(SUFFIX)/pyvenv.cfg 2>/dev/null)),python3)
STACK ?= onedl
export STACK
SUFFIX = $(patsubst %,-%,$(filter-out onedl,$(STACK)))
RUN = .venv$(SUFFIX)/bin/python
PYTEST = $(RUN) -m pytest -n logical --maxprocesses 4 --dist worksteal

.PHONY: setup demo test test-all bench gpu-check compare real lint zoo docs
setup:
	@command -v $(PYTHON) >/dev/null || { echo "There is no $(PYTHON). Install Python 3.10 or newer, or name one: make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) tools/dev/setup_env.py

demo: setup
	@$(RUN) projects/lab/tools/demo.py --work-dir work_dirs/demo$(SUFFIX)

# One thread per test process: the models in the tests are too small to use more.
test test-all: export OMP_NUM_THREADS = 1
test: setup
	@$(PYTEST)

test-all: setup
	@$(PYTEST) -m ''

bench: OUT = work_dirs/benchmark$(SUFFIX)
bench: setup
ifeq ($(DEVICE),cuda)
	@for run in "1 512x512" "16 512x512" "2 800x1333"; do set -- $$run; \
	    options="--device cuda --dtype bfloat16 --runtime eager compile --profile --runs 10 --batch $$1 --sizes $$2"; \
	    $(RUN) tools/benchmark.py $$options --out $(OUT)/cuda-$$1x$$2 && \
	    $(RUN) tools/benchmark.py msf-vit-s --baseline timm-vit-s $$options --out $(OUT)/cuda-$$1x$$2-fused || exit 1; done
else
	@$(RUN) tools/benchmark.py --sizes 256x256 512x512 800x1333 --out $(OUT)
endif

gpu-check: setup
	@$(RUN) tools/dev/gpu_check.py --out work_dirs/gpu_check$(SUFFIX) $(if $(PHOTOS),--photos $(PHOTOS))

compare: JOBS ?= 2
compare: TOY = work_dirs/compare$(SUFFIX)/toy
compare: setup
	@[ $(STACK) = onedl ] || { echo "make compare needs the stack onedl: class weights of MMSegmentation 1.2 fail on ignored pixels." >&2; exit 1; }
	@[ -d $(TOY) ] || $(RUN) projects/lab/tools/make_toy_data.py $(TOY)
	@IMAGENET_ROOT=$(TOY)/imagenet COCO_ROOT=$(TOY)/coco/ ADE20K_ROOT=$(TOY)/ADEChallengeData2016 \
	    $(RUN) projects/lab/tools/compare.py --jobs $(JOBS) --work-dir work_dirs/compare$(SUFFIX)

real: JOBS ?= 2
real: SEEDS ?= 0 1 2
real: REAL_ROOT ?= data/real
real: SIZE ?= small
real: OUT = work_dirs/real$(SUFFIX)$(patsubst %,-%,$(filter-out small,$(SIZE)))
real: CONFIGS = projects/lab/configs/real$(patsubst %,/%,$(filter-out small,$(SIZE)))
real: export REAL_ROOT := $(REAL_ROOT)
real: export MMATTN_REAL_LISTS = $(OUT)/lists
real: export MMATTN_REAL_WEIGHTS = $(OUT)/weights
real: setup
	@[ "$(filter small full,$(SIZE))" ] || { echo "SIZE must be small or full, not $(SIZE)." >&2; exit 1; }
	@$(RUN) projects/lab/tools/real_data.py $(REAL_ROOT) --lists $(OUT)/lists
	@$(RUN) projects/lab/tools/compare.py $(CONFIGS)/tiny-imagenet.py $(if $(MODELS),--row $(MODELS)) \
	    --rates 5e-4 1e-3 2e-3 4e-3 --seeds 0 --jobs $(JOBS) --work-dir $(OUT)/classifiers \
	    $(if $(OPTIONS),--cfg-options $(OPTIONS))
	@$(RUN) projects/lab/tools/real_weights.py $(OUT)/classifiers --out $(OUT)/weights
	@$(RUN) projects/lab/tools/compare.py $(CONFIGS)/camvid.py $(CONFIGS)/bccd.py \
	    $(if $(MODELS),--row $(MODELS) $(addsuffix -pretrained,$(MODELS))) \
	    --rates 1e-3 --seeds $(SEEDS) --jobs $(JOBS) --work-dir $(OUT)/downstream \
	    $(if $(OPTIONS),--cfg-options $(OPTIONS))
	@$(RUN) projects/lab/tools/real_report.py $(OUT) --configs $(CONFIGS) --out $(OUT)/report $(if $(OPTIONS),--cfg-options $(OPTIONS))

lint: setup
ifeq ($(STACK),onedl)
	@$(RUN) -m mypy
endif
	@$(dir $(RUN))lint-imports --no-logo
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .

zoo: setup
	@$(RUN) tools/dev/paper_figures.py
	@$(RUN) tools/dev/model_zoo.py

docs: setup
	@[ $(STACK) = onedl ] || { echo "make docs needs the stack onedl: requirements/$(STACK).txt has no MkDocs." >&2; exit 1; }
	@$(RUN) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make docs needs Python 3.11 or newer: make docs PYTHON=python3.11" >&2; exit 1; }
	@NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict
