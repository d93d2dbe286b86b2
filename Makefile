# Two commands do everything on a fresh machine:  make try   and   make test
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help try test dist format lint types imports compile pytest nightly behaviour size slurm browser bench fuzz mutants reference pictures clean

help: ## Say what can be made
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16

try: $(VENV)/.installed ## See Helios work on a made-up month of a GPU cluster (about five minutes, later two)
	@$(BIN)/helios compile
	@$(BIN)/helios try

test: ## Run everything that CI runs
	@$(MAKE) --no-print-directory --jobs=3 --output-sync=line compile types format lint imports browser
	@$(MAKE) --no-print-directory pytest

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Helios needs Python 3.11 or newer; $(PYTHON) is older. Say: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "No virtual environment could be made; on Debian and Ubuntu: apt install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	@echo "Installing Helios into $(VENV) (about a minute) ..."
	@$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.tools: pyproject.toml $(VENV)/.installed
	@echo "Installing what the tests need into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --group test --group lint
	@touch $@

format: $(VENV)/.tools
	$(BIN)/ruff format --check .

lint: $(VENV)/.tools
	$(BIN)/ruff check .

types: $(VENV)/.tools
	$(BIN)/mypy

imports: $(VENV)/.tools
	$(BIN)/lint-imports

# Else several tests at once would compile the same. It takes minutes, during which the tools are installed.
compile: $(VENV)/.installed
	$(BIN)/helios compile

# Two begin with live tests, which mostly wait, and two compute, one for each of two processors.
WORKERS ?= 4
SLOWEST ?= 50
pytest: $(VENV)/.tools browser
	$(BIN)/pytest --numprocesses $(WORKERS) --durations $(SLOWEST)

nightly: $(VENV)/.tools ## Run every case of what the usual tests sample: faults, and sixty times the examples of properties
	$(BIN)/pytest --numprocesses $(WORKERS) -m 'nightly or hypothesis' --hypothesis-profile nightly

dist: $(VENV)/.tools ## Build wheel and sdist into dist/, and packages for Debian and rpm that install without a network
	$(BIN)/python -m build --outdir dist .
	PYTHON=$(BIN)/python deploy/packages/build.sh dist/*.whl dist

size: $(VENV)/.tools ## Print code lines by package beside the budget
	$(BIN)/python -m tests.size

behaviour: $(VENV)/.tools ## Compare what Helios does with golden files, after a restructuring
	$(BIN)/python -m tests.behaviour compare

slurm: ## Install Slurm for the live tests, where that is possible (root, Debian or Ubuntu)
	@command -v slurmctld >/dev/null && command -v mariadbd >/dev/null && command -v debootstrap >/dev/null && command -v ch-run >/dev/null && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "Installing Slurm and MariaDB for the live tests ..."; deploy/devcluster/devcluster install >/dev/null; \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends debootstrap >/dev/null; \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends charliecloud-runtime >/dev/null || true; \
	else echo "Slurm is not installed: the live tests will be skipped (deploy/devcluster/devcluster install, as root)"; fi

browser: slurm ## Install Chromium for the tests of the web page, where that is possible (root, Debian or Ubuntu)
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "Installing Chromium for the tests of the web page ..."; \
	  { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends chromium; } >/dev/null \
	    || echo "Chromium could not be installed: the tests of the web page in a browser will be skipped"; \
	else echo "Chromium is not installed: the tests of the web page in a browser will be skipped"; fi

bench: $(VENV)/.tools ## Print every figure the documentation claims, beside its control
	@for benchmark in benchmarks/*.py; do \
	  echo "== $$benchmark"; $(BIN)/python -m benchmarks.$$(basename $$benchmark .py) || exit 1; done

fuzz: $(VENV)/.tools ## Feed every reader with 100,000 mutated files, other ones each day; what it finds is kept in tests/fuzz/found
	nice $(BIN)/python -m tests.fuzz all --inputs 100000 --seed $$(date +%Y%m%d)

PACKAGE ?= control warehouse slurm
SAMPLE  ?= 100
SEED    ?= 1
mutants: $(VENV)/.tools ## Change the code in small ways and print what no test notices: PACKAGE=control SAMPLE=300 SEED=2
	@$(BIN)/python -m pip install --quiet --group mutants
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m tests.mutants $(PACKAGE) --sample $(SAMPLE) --seed $(SEED)

clean: ## Remove the environment and everything made
	rm -rf $(VENV) build dist helios-try .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache mutants

reference: $(VENV)/.tools ## Write docs/reference/ from the code
	$(BIN)/python docs/generate.py

pictures: $(VENV)/.tools ## Take docs/images/ anew from what helios try shows today (needs Chromium)
	$(BIN)/python docs/pictures.py
