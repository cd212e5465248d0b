# make train | test | test-cupy | test-plans | lint | install | clean    PYTHON=python3.13 chooses .venv's interpreter
# A machine with a GPU: make train EXTRAS=cuda13,digits,test (or cuda12 on a V100)
PYTHON ?= python3
EXTRAS ?= dali,digits,test
CONFIG ?= configs/digits.yaml
ARGS ?=

comma := ,
VENV := .venv
BIN := $(VENV)/bin
# The stamp names interpreter and extras: another PYTHON or EXTRAS makes the environment anew.
STAMP := $(VENV)/.installed-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)-$(subst $(comma),-,$(EXTRAS))

# For the tests that compare with torch, and with the Python that the extra test has it for. PyPI's torch for Linux brings
# gigabytes of CUDA along; the one for the CPU has an index of its own, or lies where pip is configured to look.
INSTALL_TORCH = $(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps --retries 1 \
	--extra-index-url https://download.pytorch.org/whl/cpu "torch; python_version == '3.11'"

.PHONY: train test test-cupy test-plans lint install clean

train: install data/digits
	@$(BIN)/python scripts/train_imagenet.py --config $(CONFIG) $(ARGS)

data/digits: | install
	@$(BIN)/python scripts/make_digits.py --out $@

test: install
	$(BIN)/python -m pytest $(ARGS)

# The same tests with CuPy installed: without a GPU, importing it changes nothing, and kernels compile. Without those of
# data, which do not import it, of whole runs, which take minutes, and of arithmetic, which has its backend handed to it.
WITHOUT = data_dali* data_pillow* data_s* pack_* make_* train_signals* train_recipe* parity* benchmark_* convert_models* \
	convert_random* primitives_* nchw_* cuda_[!k]* update_batched* update_kernels* update_t* update_w* bars* check_gpu*
test-cupy: install
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[test-cupy]"
	$(BIN)/python -m pytest $(foreach name,$(WITHOUT),'--ignore-glob=tests/test_$(name)') $(ARGS)

# Every cuDNN plan that ResNets need is built, for three GPUs and without one. Downloads 1 GB.
test-plans: install
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[test-plans]"
	$(BIN)/python -m pytest tests/backends/cudnn/test_plans.py tests/benchmarks/test_check_gpu.py::test_the_real_cudnn_writes_files_as_the_tests_have_them \
		$(ARGS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

install: $(STAMP)

# Chainer has an sdist only, and its setup.py imports pkg_resources, which setuptools 81 and later lack.
$(STAMP): setup.cfg setup.py constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(not (3, 10) <= v <= (3, 13))' || \
		{ echo "mixprec needs Python 3.10 to 3.13 with venv; '$(PYTHON)' is not: choose one by PYTHON=python3.12 make ..."; exit 2; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt "setuptools<81" wheel
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation chainer==7.8.1
	$(if $(filter test,$(subst $(comma), ,$(EXTRAS))),$(INSTALL_TORCH))
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[$(EXTRAS)]"
	@touch $@

# Results stay: they may be weeks of training.
clean:
	rm -rf $(VENV) data/digits data/textures .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
