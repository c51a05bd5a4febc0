# Each target does all of its own set-up: on a fresh machine `make train` or `make test` is the only command needed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
WORKERS ?= $(shell nproc 2>/dev/null || echo 2)

.PHONY: train test test-fast test-all lint pages pictures paper reliability clean

train: $(VENV)/installed
	$(BIN)/trainbook train gpt-tiny

# One thread a worker: tests are many small models, and threads would only wait for each other. A file is one worker's,
# so that what its tests share is made once; files come in the order of tests/conftest.py. What Python compiles is kept,
# also where the environment says not to: hundreds of processes import it.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test: $(VENV)/installed-test
	$(PYTEST) -m "not slow and not gpu" tests

# Without those that start processes, or train many models.
test-fast: $(VENV)/installed-test
	$(PYTEST) -m "not slow and not gpu" tests $(addprefix --ignore=tests/,e2e parallel study loop cli/test_transfer.py)

test-all: lint
	$(PYTEST) -m "not gpu" tests

# With the 4 GB that Node allows itself, pyright collects garbage most of the time.
lint: $(VENV)/installed-test
	$(BIN)/ruff check src tests benchmarks docs studies paper
	$(BIN)/ruff format --check src tests benchmarks docs studies paper
	NODE_OPTIONS=--max-old-space-size=8192 $(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

# The reference pages of knobs and rules, generated from their declarations, and the tables of docs/scale.md from formulas.
pages: $(VENV)/installed
	$(BIN)/python -m trainbook.knobs.pages docs/knobs
	$(BIN)/python -m trainbook.plan.pages docs/scale.md
	$(BIN)/python -m trainbook.doctor.pages docs/doctor

# The pictures of the pages, from real commands.
pictures: $(VENV)/installed-test
	$(BIN)/python docs/pictures.py
	$(BIN)/python docs/board_pictures.py

# The review of techniques with what our studies measured: paper/trainbook.pdf and .html, from results files, offline.
paper: $(VENV)/installed-test
	$(BIN)/python paper/build.py

# Ten faults, a hundred random ones, and the page that shows what came of them: about half an hour.
reliability: $(VENV)/installed-test
	status=0; \
	$(BIN)/python reliability/faults.py || status=1; \
	$(BIN)/python reliability/chaos.py || status=1; \
	$(BIN)/python reliability/page.py; exit $$status

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .ruff_cache

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("Trainbook needs Python 3.11 or newer, but $(PYTHON) is %d.%d. Try: make PYTHON=python3.11" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

# What the commands of the README need: export and Hugging Face models, tune and transfer, pictures, Parquet, the board.
$(VENV)/installed: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) install --constraint constraints.txt --editable '.[hf,tune,charts,data,bitsandbytes,board]'
	$(BIN)/python -m compileall -q src
	@touch $@

$(VENV)/installed-test: $(VENV)/installed
	$(PIP) install --constraint constraints.txt --editable '.[test,benchmarks]'
	@$(call DEBIAN_PACKAGE,/usr/share/wordnet/data.noun,wordnet-base)
	@$(call DEBIAN_PACKAGE,/usr/lib/postgresql,postgresql)
	@$(call DEBIAN_PACKAGE,/usr/bin/chromium,chromium)
	@touch $@

# The data of builtin:wordnet, the PostgreSQL server of a test and the browser of the board's tests are Debian packages. Without them, or without the right
# to install them, their tests are skipped.
DEBIAN_PACKAGE = if [ ! -e $(1) ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	export DEBIAN_FRONTEND=noninteractive; apt-get install --quiet --quiet --yes $(2) >/dev/null || \
	{ apt-get update --quiet --quiet && apt-get install --quiet --quiet --yes $(2) >/dev/null; } || \
	echo "$(2) could not be installed"; fi
