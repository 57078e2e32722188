# make help          what there is
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check -q
# torch by its exact name and before anything that depends on it, so that nothing pulls another build of it in.
EXAMPLES := .venv-examples
TORCH  := $(shell sed -n 's/.*"\(torch==[^"]*\)".*/\1/p' pyproject.toml)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: dist zipapp release-check help install test test-all test-flux test-pbs test-apptainer test-images lint demo docs packages clean

help:
	@echo "make install    .venv with the windlass command in it"
	@echo "make demo       a small real training with 2 ranks that loses one on the way (installs torch into .venv)"
	@echo "make test       everything but the slow tests; sets up what it needs, Debian packages too when root"
	@echo "make test-all   the slow tests too, in parts: $(PARTS) (make test-all PART=cluster runs one)"
	@echo "make test-flux FLUX_PREFIX=DIR   the tests of launchers and schedulers in a real Flux (see CONTRIBUTING.md)"
	@echo "make test-pbs PBS_PREFIX=DIR     the tests of the scheduler on a submit node of a real PBS, as an ordinary user"
	@echo "make docs       the documents as a site in site/, its links checked: open site/index.html"
	@echo "make test-apptainer APPTAINER_ROOT=DIR   the tests of apptainer with a real one, of a Debian in DIR (as root)"
	@echo "make test-images    builds libfabric, Open MPI and NCCL's plugin from source in an image (an hour; see CONTRIBUTING.md)"
	@echo "make lint       ruff and mypy"
	@echo "make dist       dist/ with sdist and wheel"
	@echo "make zipapp     dist/windlass.pyz: one file that needs nothing but Python 3.10 or newer"
	@echo "make release-check   builds, installs and tries a release in fresh environments, and runs the demo from the wheel"
	@echo "make clean      remove .venv and caches"

install: $(VENV)/.installed

test: packages lint
	@$(BIN)/python scripts/run_tests.py -m "not slow" $(PYTEST_ARGS)

# Each part ends with its own summary; a part that fails does not stop the next one.
PARTS := fast attacks cluster examples packaging rest
test-all: packages lint docs
	@code=0; for part in $(or $(PART),$(PARTS)); do echo "== $$part"; case $$part in \
	  fast) set -- -m "not slow" ;; \
	  attacks) set -- -m slow tests/attacks tests/chaos ;; \
	  cluster | examples | packaging) set -- -m slow tests/$$part ;; \
	  rest) set -- -m slow tests $(foreach part,attacks chaos cluster examples packaging,--ignore=tests/$(part)) ;; \
	  *) echo "PART is one of $(PARTS)" >&2; exit 2 ;; esac; \
	  $(BIN)/python scripts/run_tests.py "$$@" $(PYTEST_ARGS) || code=1; done; exit $$code

# In a real Flux, which the machine does not have by default. $(abspath) because the command runs on another node.
test-flux: $(VENV)/.tools
	@scripts/with-flux.sh $(FLUX_PREFIX) $(abspath $(BIN))/python -m pytest -p no:cacheprovider -k flux \
	  tests/conformance $(PYTEST_ARGS)

# On a submit node of a real PBS that keeps job history; test folders lie in the home folder, which jobs see too.
test-pbs: $(VENV)/.tools
	@PATH="$$PATH:$(PBS_PREFIX)/bin" WINDLASS_TEST_REAL=pbs $(BIN)/python -m pytest -p no:cacheprovider -k pbs \
	  --basetemp=$(HOME)/windlass-test-pbs tests/conformance/test_scheduler_submits.py $(PYTEST_ARGS)

# With the apptainer of a newer Debian in a folder, which is made there the first time (debootstrap, as root).
test-apptainer: $(VENV)/.tools
	@WINDLASS_REQUIRE=apptainer scripts/with-apptainer.sh $(or $(APPTAINER_ROOT),$(CURDIR)/build/apptainer-root) \
	  $(BIN)/python -m pytest -p no:cacheprovider -k apptainer tests/containers tests/unit/containers $(PYTEST_ARGS)

# From source, an hour. IMAGE_SOURCES names copies of the repositories where their hosts cannot be reached.
test-images: $(VENV)/.tools
	@WINDLASS_TEST_REAL=images WINDLASS_REQUIRE=podman IMAGE_SOURCES=$(IMAGE_SOURCES) IMAGE_STORAGE=$(IMAGE_STORAGE) nice -n 10 \
	  $(BIN)/python -m pytest -p no:cacheprovider tests/containers/test_whole_build.py $(PYTEST_ARGS)

lint: $(VENV)/.tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

demo: $(VENV)/.torch
	$(BIN)/windlass run --ranks-per-node 2 --restarts 2 --watch examples/multinode/survive.py --lose-rank-at 250
	@echo
	$(BIN)/windlass report
	@echo 'next: . $(BIN)/activate, then `windlass`'

docs: $(VENV)/.docs
	@$(BIN)/python scripts/docs/generate.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

dist: $(BIN)/python
	$(PIP) install build
	rm -rf dist
	$(BIN)/python -m build

zipapp: dist
	$(BIN)/python scripts/make_zipapp.py dist/*.whl dist/windlass.pyz

release-check: $(BIN)/python
	$(BIN)/python scripts/release_check.py

packages:
	@scripts/debian-packages.sh

clean:
	rm -rf $(VENV) $(EXAMPLES) build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info
	find src tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

# Debian's python3 has no ensurepip before python3-venv is there.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "$(PYTHON) is older than 3.10: make PYTHON=/path/to/newer/python3 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || scripts/debian-packages.sh python3-venv
	$(PYTHON) -m venv $(VENV)

# Stamps: each says that .venv holds what pyproject.toml asks for, so that a second call costs nothing.
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(PIP) install -e .
	@touch $@

$(VENV)/.torch: $(VENV)/.installed
	$(PIP) install '$(TORCH)' numpy
	@touch $@

$(VENV)/.tools: pyproject.toml $(VENV)/.torch
	$(PIP) install -e '.[dev,real]'
	@touch $@

$(VENV)/.docs: pyproject.toml $(VENV)/.installed
	$(PIP) install -e '.[docs]'
	@touch $@

# What the examples need beside torch, apart from .venv but with its torch. DeepSpeed's build imports torch.
NEEDS_OF_EXAMPLES := $(wildcard examples/*/requirements.txt) tests/cluster/trainers/requirements.txt
$(EXAMPLES)/.installed: $(NEEDS_OF_EXAMPLES) | $(VENV)/.torch
	$(BIN)/python -m venv $(EXAMPLES)
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > "$$($(EXAMPLES)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch-of-venv.pth"
	$(EXAMPLES)/bin/python -m pip --disable-pip-version-check -q install setuptools wheel ninja py-cpuinfo
	$(EXAMPLES)/bin/python -m pip --disable-pip-version-check -q install --no-build-isolation \
	  $(addprefix -r ,$(NEEDS_OF_EXAMPLES))
	@touch $@
