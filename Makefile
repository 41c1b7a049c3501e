# `make train` and `make test` set up everything they need in .venv; nothing else is touched.
PYTHON ?= python3
VENV ?= .venv
CONFIG ?= configs/vit_mu_digits.py
WORKDIR ?= runs/$(basename $(notdir $(CONFIG)))
RUN := $(VENV)/bin/python

# The plugins of notebooks, of asyncio and of hypothesis, which no unit test uses, take longer to start
# than most files of unit tests; `make quick` checks no shapes of annotated arrays.
PLAIN := $(RUN) -m pytest -p no:nbmake -p no:anyio -p no:hypothesispytest
QUICK := $(PLAIN) --jaxtyping-packages=

# Without its files of bytecode, Python would compile the libraries anew in every process; pip would write
# those of every module, of most of which nothing imports a line.
unexport PYTHONDONTWRITEBYTECODE
export PIP_NO_COMPILE := 1

.PHONY: train test test-all quick soak docs docs-serve docs-check parity aot lint bench bench-peers bench-gpu first-gpu digits own-images self-supervised referee emoji oldest newest lock clean

train: $(VENV)/installed
	$(RUN) main.py --config=$(CONFIG) --workdir=$(WORKDIR)

# All unit tests, a smoke test of each thing that one does with a run, and the structure of the repository:
# five minutes on two cores, the set-up included.
FIRST := tests/unit tests/smoke $(patsubst %,tests/meta/test_%.py,layering lock mirror moved names)

test: $(VENV)/installed-dev
	$(PLAIN) -n 2 --dist worksteal $(FIRST)

# And everything else: what compiles models, kills runs, executes the documents, compares with others. Many of
# these tests wait for a process to end, so three go side by side on two cores. The shapes of annotated arrays,
# which the tests before have checked of every family, are not checked again.
test-all: test
	$(RUN) -m pytest -p no:nbmake -p no:anyio -n 3 --dist worksteal --jaxtyping-packages= $(addprefix --ignore=,$(FIRST))

# The tests that start no process and compile no model: all, or FILE=vit_jax/data/images/ops.py the ones that
# mirror a file.
quick: $(VENV)/installed-dev
ifdef FILE
	$(QUICK) -n 0 $(subst __init__,init,$(patsubst vit_jax/%,tests/unit/%,$(dir $(FILE)))test_$(notdir $(FILE)))
else
	$(QUICK) -n 2 --dist worksteal tests/unit
endif

# Faults drawn at random for MINUTES, each, bit for bit: runs on this machine's disk, in an emulated bucket, and of two
# nodes of a real Slurm in a real S3 server's bucket (Debian: slurm-wlm munge).
MINUTES ?= 20
soak: $(VENV)/installed-parity
	$(RUN) -m tests.faults.soak --minutes=$(MINUTES)
	$(RUN) -m tests.faults.bucket_soak --kills=$(MINUTES)
	$(RUN) -m tests.engines.soak --minutes=$(MINUTES)

# The site, in build/site, and as it is while one writes: http://127.0.0.1:8000/. Links, anchors and names
# that lead nowhere are errors.
MKDOCS := NO_MKDOCS_2_WARNING=1 JAX_PLATFORMS=cpu $(RUN) -m mkdocs
docs: $(VENV)/installed-docs
	$(MKDOCS) build

docs-serve: $(VENV)/installed-docs
	$(MKDOCS) serve --no-strict

# The repository's text: documents, notebook, lock files, layering.
docs-check: $(VENV)/installed-dev
	$(RUN) -m pytest -n 2 --dist worksteal tests/meta

# The models against timm on a CPU build of torch; without it `make test-all` skips them.
parity: $(VENV)/installed-parity
	$(RUN) -m pytest -n 2 tests/parity

# Training steps through the compilers of TPUs and GPUs; without them `make test-all` skips these.
aot: $(VENV)/installed-aot
	$(RUN) -m pytest -n 2 tests/aot

lint: $(VENV)/installed-docs
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/pyright --pythonpath $(RUN)

# Computing on one core, where neither side waits for a thread; loading and starts on all of them.
ONE_CORE := $(if $(shell command -v taskset),taskset --cpu-list 0)
bench: $(VENV)/installed
	$(ONE_CORE) $(RUN) -m benchmarks.train_step
	$(ONE_CORE) $(RUN) -m benchmarks.inference --rounds 5
	$(RUN) -m benchmarks.input_pipeline
	$(RUN) -m benchmarks.first_batch
	$(RUN) -m benchmarks.startup --large
	$(RUN) -m benchmarks.host_overhead
	$(RUN) -m benchmarks.token_merging
	$(RUN) -m benchmarks.memory
	$(RUN) -m benchmarks.tables

# Exports, the demo page and single operations; needs torch, torchvision, timm, onnxruntime and onnxscript in the environment.
bench-peers: $(VENV)/installed
	$(ONE_CORE) $(RUN) -m benchmarks.latency
	$(ONE_CORE) $(RUN) -m benchmarks.latency --variant vit_ti16 vit_s16 --dtype int8
	$(ONE_CORE) $(RUN) -m benchmarks.serve
	$(ONE_CORE) $(RUN) -m benchmarks.cpu_operations
	$(RUN) -m benchmarks.tables

# On a GPU, beside timm by torch.compile, with MFU; needs torch, torchvision and timm in the environment.
bench-gpu: $(VENV)/installed
	for variant in vit_s16 vit_b16 vit_l16; do \
		$(RUN) -m benchmarks.train_step --variant $$variant --batch 256 --dtype bfloat16 && \
		$(RUN) -m benchmarks.inference --variant $$variant --batch 1 256 --dtype bfloat16 || exit 1; \
	done

# The first hour on a GPU or TPU: what it computes beside a CPU, how fast, and CIFAR-10; 45 minutes at most. The same command
# goes on where it stopped.
first-gpu: $(VENV)/installed
	$(RUN) -m benchmarks.first_gpu

# The accuracy table of the README, and that beside published results: three seeds of each run.
digits: $(VENV)/installed
	$(RUN) -m benchmarks.digits
	$(RUN) -m benchmarks.tables

# The table of one's own images: two starts, three seeds, half an hour.
own-images: $(VENV)/installed
	$(RUN) -m benchmarks.own_images
	$(RUN) -m benchmarks.tables

# The tables and the picture of learning without labels: three seeds each, three hours on two cores.
self-supervised: $(VENV)/installed
	$(RUN) -m benchmarks.self_supervised
	$(RUN) -m benchmarks.unlabelled_curves
	$(RUN) -m benchmarks.tables

# The tables and the picture of every objective from one start for the same FLOPs: three seeds, an hour and a half on two
# cores.
referee: $(VENV)/installed
	$(RUN) -m benchmarks.referee
	$(RUN) -m benchmarks.tables

# The tables and the picture of emoji found by their names: three seeds, two artists held out, an hour and a half on two
# cores. It needs npm, and cairosvg in the environment.
emoji: $(VENV)/installed-dev
	$(RUN) -m benchmarks.emoji
	$(RUN) -m benchmarks.tables

# The whole suite at an end of the ranges of pyproject.toml: the oldest releases on Python 3.11, and the
# newest Python that is here with what requirements.txt locks for it. From Python 3.12 on that is a
# newer JAX than CI's 3.11 takes. Old libraries use what newer ones have deprecated.
oldest: PYTHON = python3.11
oldest:
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install -q -r locks/oldest.txt
	.venv-oldest/bin/python -m pip install -q --no-deps -r locks/parity.txt -r locks/onnx.txt -e .
	.venv-oldest/bin/python -m pytest -n 2 --dist worksteal -W default::DeprecationWarning

newest: PYTHON = $(firstword $(foreach v,3.14 3.13 3.12,$(shell command -v python$(v))))
newest:
	$(MAKE) .venv-newest/installed-parity .venv-newest/installed-aot test-all VENV=.venv-newest PYTHON=$(PYTHON)

# Refresh the lock files from pyproject.toml: the newest releases for each Python, and the oldest.
COMPILE := $(VENV)/bin/uv pip compile -q --upgrade --generate-hashes --python-version 3.11 pyproject.toml
EXTRAS := $(addprefix --extra ,train dev onnx hub text serve sweep gcs http)
lock: | $(VENV)/bin/python
	$(PIP) -r locks/uv.txt
	echo uv | $(VENV)/bin/uv pip compile -q --upgrade --generate-hashes --universal --python-version 3.11 - -o locks/uv.txt
	$(COMPILE) --universal --extra train -o requirements.txt
	$(COMPILE) --universal $(EXTRAS) -c requirements.txt -o locks/dev.txt
	$(COMPILE) --universal --extra docs --extra types -c locks/dev.txt -o locks/docs.txt
	$(COMPILE) --resolution lowest-direct $(EXTRAS) --extra aot-tpu --extra aot-gpu -o locks/oldest.txt

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else \
		"error: Python 3.11 or newer is needed; try: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

# uv takes a quarter of pip's time. Where it is not to be had, or does not reach the index that pip is set up for, pip
# installs the same. A lock names every package; without --no-deps the same list would be worked out anew.
PIP := $(RUN) -m pip install -q --disable-pip-version-check --no-deps
UV := $(VENV)/bin/uv pip install -q --no-progress --python $(RUN) --no-deps
install = $(UV) $(1) || $(PIP) $(1)

$(VENV)/installed: requirements.txt | $(VENV)/bin/python
	@echo "installing the locked packages into $(VENV), which takes up to a minute"
	-$(PIP) -r locks/uv.txt
	$(UV) -r requirements.txt -e . || { $(PIP) -r requirements.txt && $(PIP) -e .; }
	touch $@

$(VENV)/installed-dev: locks/dev.txt $(VENV)/installed
	$(call install,-r locks/dev.txt)
	touch $@

$(VENV)/installed-docs: locks/docs.txt $(VENV)/installed-dev
	$(call install,-r locks/docs.txt)
	touch $@

# By pip, which may be set up for an index of torch's CPU builds.
$(VENV)/installed-parity: locks/parity.txt locks/onnx.txt $(VENV)/installed-dev
	$(PIP) -r locks/parity.txt -r locks/onnx.txt
	touch $@

$(VENV)/installed-aot: locks/aot.txt $(VENV)/installed-dev
	$(call install,-r locks/aot.txt)
	touch $@

clean:
	rm -rf $(VENV) .venv-oldest .venv-newest .cache
