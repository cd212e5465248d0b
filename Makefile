# `make help` prints this list of variables, and the targets:
##   PYTHON   interpreter of the environment, 3.10 to 3.13: PYTHON=python3.13; default: that of .venv, or else python3
##   EXTRAS   extras of setup.cfg that are installed; default: those in .venv, or else none for `make train` and `make
##            monitor`, and dali,test for all else. On a machine with a GPU: EXTRAS=cuda13,test, or cuda12 on a V100; for
##            old code: EXTRAS=dali,legacy
##   CONFIG   what `make train` trains; default: configs/digits.yaml
##   RANKS    number of processes of `make train`, which train together by MPI; default: 1
##   ARGS     more arguments of the command that a target ends with: ARGS="--set training.epochs=2" of train,
##            ARGS="-k digits" of one target of tests
comma := ,
VENV := .venv
BIN := $(VENV)/bin
# Two stamps: .installed-3.12 for the interpreter with Chainer and mixprec, .installed-3.12+dali,test for the extras that
# are added. Another PYTHON, or others than the extras that were added, makes the environment anew. Where none is given,
# they are those of the environment that is there, without digits, an extra of the past.
ADDED := $(wildcard $(VENV)/.installed-*+*)
PYTHON ?= $(if $(wildcard $(VENV)/.installed-*),$(BIN)/python,python3)
EXTRAS ?= $(subst $(comma)digits,,$(word 2,$(subst +, ,$(firstword $(ADDED)))))
CONFIG ?= configs/digits.yaml
RANKS ?= 1
ARGS ?=

BASE := $(VENV)/.installed-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
LIBRARY := $(VENV)/.compiled

# Who only looks gets no extras: DALI alone is 591 MB.
LOOK := $(if $(EXTRAS),install,$(BASE) $(LIBRARY))
EXTRAS := $(or $(EXTRAS),dali$(comma)test)
STAMP := $(BASE)+$(EXTRAS)

# pip would compile every module to bytecode, which takes longer than all the rest. `make install` does so at the end, on
# all cores, and without tests of packages and torch with its symbolic algebra: Python compiles those if it comes to them.
# Extras are those of the mixprec that is installed: to install it again would compile the native library again.
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-build-isolation \
	--constraint $(CONSTRAINTS)

# The extra legacy has older NumPy and protobuf than constraints.txt: there its own bounds take the place of those.
LEGACY = $(filter legacy,$(subst $(comma), ,$(EXTRAS)))
CONSTRAINTS = $(if $(LEGACY),$(VENV)/)constraints.txt

.NOTPARALLEL:
.PHONY: train monitor help test test-all test-slow test-long test-cupy test-plans test-sanitized lint docs rules install anew \
	release clean

# With RANKS=2 and more a thread of BLAS for each process, unless OMP_NUM_THREADS says otherwise.
ifneq ($(RANKS),1)
MPIEXEC = $(BIN)/mpiexec
LAUNCH = OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(MPIEXEC) -n $(RANKS)
endif
train: $(LOOK) data/digits $(MPIEXEC) ## train a small ResNet on digits, after installing no more than that needs (the default)
	@$(LAUNCH) $(BIN)/python -m mixprec train --config $(CONFIG) $(ARGS)

$(BIN)/mpiexec: | $(LOOK)
	@echo "install: MPI"
	@$(INSTALL) "mixprec[mpi]"

monitor: $(LOOK) ## pages in a browser about the runs in results, at the address that it prints
	@$(BIN)/python -c "import nicegui" 2>/dev/null || { echo "install: NiceGUI"; \
		$(INSTALL) "mixprec[monitor]"; }
	@mkdir -p results
	@$(BIN)/python -m mixprec monitor results $(ARGS)

data/digits: | $(LOOK) ## handwritten digits as JPEG files
	@$(BIN)/python -m mixprec digits $@

# A worker on each core, with one thread of BLAS and up to 3 GB of memory; one line of progress. Bytecode is kept whatever
# the environment says: the tests start hundreds of Pythons, which would compile mixprec each time.
PROGRESS = -q -o console_output_style=classic -p tests.progress
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest $(PROGRESS) -n auto --maxprocesses 8 --dist worksteal

test: install ## the core of the tests: what a user's trust rests on
	@$(PYTEST) $(ARGS)

test-all: test test-slow test-long test-cupy test-plans ## all tests: the core, and everything below

test-slow: install ## what takes longer or shows what the core shows too, and the tests of the measuring tools
	@$(PYTEST) -m "slow and not long and not cupy and not plans" $(ARGS)

test-long: install ## what CI leaves out: large networks, more kills, all examples of property tests
	@$(PYTEST) -m "long or examples" $(ARGS)

# The files with a mark: pytest would import all others, too.
MARKED = $(shell grep -rl --include="test_*.py" "mark\.$(1)\b" tests)

# Kernels compile; and CuPy that can be imported, without a GPU, changes nothing: where mixprec looks for it, all of the
# core again, and of what computes a file for each folder.
CUPY = $(addprefix tests/,bridge compat test_arguments.py test_environment.py test_patches.py test_startup.py \
	functions/test_convolution.py graph_capture/test_kept.py links/test_parameters.py optimizer/test_wrapper.py \
	rewrite/test_convert.py app/run/test_part_rates_command.py) $(call MARKED,cupy)
test-cupy: install ## with CuPy installed, without a GPU: parts of the core again, and all kernels compile
	@echo "install: CuPy and NVRTC"
	@$(INSTALL) "mixprec[test-cupy]"
	@$(PYTEST) -m "(cupy or not slow) and not long" $(CUPY) $(ARGS)

# The version that PyTorch 2.11 brings lies in a folder beside the one that is installed; the frontend takes cuDNN from
# LD_LIBRARY_PATH if there is one. 5: ARGS leaves no test for it.
OTHER_CUDNN = 9.19.0.56
OTHER_FOLDER = $(VENV)/cudnn-$(OTHER_CUDNN)
test-plans: install ## with cuDNN installed, two versions, without a GPU: its plans of ResNets; downloads 1.5 GB
	@echo "install: cuDNN, its frontend, and what they load"
	@$(INSTALL) "mixprec[test-plans]"
	@test -d $(OTHER_FOLDER) || { echo "install: cuDNN $(OTHER_CUDNN), in $(OTHER_FOLDER)"; \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps \
		--target $(OTHER_FOLDER) nvidia-cudnn-cu13==$(OTHER_CUDNN); }
	@CUDNN_VERSION=$(basename $(OTHER_CUDNN)) LD_LIBRARY_PATH=$(CURDIR)/$(OTHER_FOLDER)/nvidia/cudnn/lib \
		$(BIN)/python -m pytest $(PROGRESS) -m "plans and each_version and not long" $(call MARKED,plans) $(ARGS) || [ $$? -eq 5 ]
	@$(BIN)/python -m pytest $(PROGRESS) -m "plans and not long" $(call MARKED,plans) $(ARGS)

# The native library is compiled anew in a copy of the checkout, with a stand-in for AMX: sanitizers do not see what its
# instructions read. Left out is what sets limits of memory, as the sanitizer has a malloc of its own; it fills what it hands
# out with NaN.
SANITIZED = $(VENV)/sanitized
SANITIZE = -fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=undefined
RUN_SANITIZED = cd $(SANITIZED) && LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0:max_malloc_fill_size=1000000000:malloc_fill_byte=255:log_path=$(CURDIR)/$(SANITIZED)/report \
	UBSAN_OPTIONS=print_stacktrace=1:log_path=$(CURDIR)/$(SANITIZED)/report \
	PYTHONPATH=$(CURDIR)/$(SANITIZED) PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=2 OPENBLAS_NUM_THREADS=1 $(CURDIR)/$(BIN)/python
test-sanitized: install ## the native library under AddressSanitizer and UBSan, with g++: see docs/native.md
	@echo "compile the native library for the sanitizers; some minutes"
	@rm -rf $(SANITIZED) && mkdir $(SANITIZED)
	@git ls-files -z --cached --others --exclude-standard | tar --create --null --files-from=- | tar -xC $(SANITIZED)
	@cd $(SANITIZED) && sed -i "s/-O3 -g0/-O1 -g -fno-omit-frame-pointer $(SANITIZE)/" setup.py && \
		LDFLAGS="$(SANITIZE)" $(CURDIR)/$(BIN)/python setup.py -q build_ext --inplace --force \
		--define STAND_IN --include-dirs tests/native
	@$(RUN_SANITIZED) -m pytest $(PROGRESS) -n auto --maxprocesses 8 -m "" tests/native tests/backends/native tests/backends/cpu \
		--ignore tests/native/test_amx.py tests/optimizer/batch/test_native_update.py -k "not freed_memory and not no_memory and not created and not best_instruction_set" $(ARGS)

lint: install ## ruff: rules and format; mypy: types of the public names; code lines by folder
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python .ci/code_lines.py

docs: install ## the site, in build/site: pages, API reference, search; a dead link is an error
	@$(BIN)/python -c "import furo, myst_parser" 2>/dev/null || { echo "install: Sphinx"; $(INSTALL) "mixprec[docs]"; }
	@$(BIN)/python scripts/build_docs.py $(ARGS)

rules: install ## after a change of an update rule: all that is made of its declaration
	$(BIN)/python -m mixprec.optimizer.rules.generate
	for page in config config-tuning; do sed -i '/^# Keys$$/q' docs/$$page.md && $(BIN)/python -c "from mixprec.app.config \
		import reference; print('\n' + reference('$$page' == 'config-tuning'), end='')" >> docs/$$page.md || exit 1; done
	@$(MAKE) --no-print-directory install

install: $(STAMP) $(LIBRARY) ## make .venv with Chainer, mixprec and EXTRAS, or add EXTRAS; nothing to do if it is up to date

# Chainer has an sdist only, and its setup.py imports pkg_resources, which setuptools 81 and later lack.
$(BASE): CONSTRAINTS = constraints.txt
$(BASE): setup.cfg setup.py constraints.txt $(if $(filter-out $(STAMP),$(ADDED)),anew)
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(not (3, 10) <= v <= (3, 13))' || \
		{ echo "mixprec needs Python 3.10 to 3.13 with venv; '$(PYTHON)' is not: choose one by PYTHON=python3.12 make ..."; exit 2; }
	@echo "install: a new environment in $(VENV), with $(PYTHON)"
	@$(PYTHON) -m venv --clear $(VENV)
	@echo "install: setuptools, of a version that can build Chainer"
	@$(INSTALL) "setuptools<81" wheel
	@echo "install: Chainer 7.8.1, built from its sdist, and mixprec, to be edited in place; up to a minute"
	@$(INSTALL) --editable .
	@touch $@ $(LIBRARY)

# PyPI's torch for Linux brings gigabytes of CUDA along; the one for the CPU has an index of its own, or lies where pip
# is configured to look. Only Python 3.11 has it in the extra test.
$(STAMP): $(BASE)
ifneq (,$(LEGACY))
	@{ grep -vE '^(numpy|protobuf)==' constraints.txt; sed -n '/^legacy =/,/^[^ ]/s/^    //p' setup.cfg; } > $(CONSTRAINTS)
endif
ifneq (,$(filter test test-legacy,$(subst $(comma), ,$(EXTRAS))))
	@echo "install: torch for the CPU, which the tests on Python 3.11 compare with; 200 MB, nothing on other versions"
	@$(INSTALL) --no-deps --retries 1 --extra-index-url https://download.pytorch.org/whl/cpu "torch; python_version == '3.11'"
endif
	@echo "install: the extras $(EXTRAS)"
	@$(INSTALL) "mixprec[$(EXTRAS)]"
	@echo "install: bytecode of most packages"
	@$(BIN)/python -m compileall -qq -j 0 -x '/(tests?|torch|sympy|networkx|pip)/' $(VENV)/lib || :
	@touch $@

# After a change of the sources, as by git pull; where there is no compiler, NumPy goes on.
$(LIBRARY): $(wildcard mixprec/native/source/*) | $(BASE)
	@echo "install: the native library"
	@$(BIN)/python setup.py -q build_ext --inplace --force
	@touch $@

# For its description URL is the public address of the repository: make release URL=https://...
release: $(LOOK) ## into dist: wheels for 3.10 and for 3.11 and later, of Chainer too, sdist, checksums; needs g++ and PyPI
	@$(BIN)/python scripts/release.py $(if $(URL),--url $(URL)) $(ARGS)

clean: ## remove the environment, generated images, caches and what building leaves; results stay
	rm -rf $(VENV) data/digits data/textures .pytest_cache .ruff_cache .mypy_cache .hypothesis build dist *.egg-info \
		mixprec/native/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## this list
	@echo "make TARGET VARIABLE=VALUE ..."
	@echo "targets:"
	@awk -F ':.*## ' '/^[a-z\/-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "variables:"
	@sed -n 's/^##  //p' $(MAKEFILE_LIST)
