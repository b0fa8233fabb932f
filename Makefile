# make quickstart   the main job end to end; BROKERS=3: a cluster; SECURE=1: TLS, tokens, grants
# make test         what to judge by, in six minutes
# make test-long    all other tests; SHARD=cluster|spark|sim|properties|soak|pages: some; results in build/long
# make test-spark SPARK=4.2.1   the shard of Spark with another release of it, in a .venv of its own under build
# make install      .venv with everything and `liftlog` in it         make lint    style, types, import rules
# make check        what to run before a commit: lint, and the quick tests that start no process, in a minute
# make bench        benchmarks, paired with peers                     make clean   removes what make made
# make lock         requirements.lock anew, at the newest versions    make sbom    build/sbom.json: all that is installed
# make prop MINUTES=60   property tests and state machines, other seeds each time, until one fails
# make fuzz MINUTES=60 [GUIDED=1]   changed inputs for every decoder, until one does what is not documented; GUIDED: by coverage
# make soak MINUTES=60 SEED=7 [BROKERS=3]   users and an operator at random; then what is stored is held against acks
# make sim SEED=7 [STEPS=900]   a cluster in one process, its story; SEED=0..500: many; MUTANT="asks in too early": with a mistake
# make chaos MINUTES=5   three brokers under load, killed, frozen, restarted; then what they have is held against their acks
# make chaos ROUNDS=50   one broker, kill -9 under load; either: HISTORY=f.jsonl, what clients saw [chaos-history/seed-SEED.jsonl]

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MINUTES ?= 5
SCRATCH = $$(test "$$(df -k --output=avail /dev/shm 2>/dev/null | tail -1)" -gt 1000000 2>/dev/null && echo env TMPDIR=/dev/shm)
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help
unexport PYTHONDONTWRITEBYTECODE  # each process that a test starts would compile what it imports
.PHONY: help install lock sbom quickstart check quick test test-long test-spark lint bench prop fuzz soak sim chaos clean

help:
	@sed -n '/^$$/q; s/^# //p' Makefile

install: $(INSTALLED)

# First what builds; then what lies here is compiled on one core while all of requirements.lock is fetched and unpacked on
# the other. Each file that is fetched has a known hash, and the lock is whole: nothing is resolved. What is installed is
# compiled to bytecode on all cores in the end: pip would do that file by file, and for the tests of others and for what
# few people import, too.
UNCOMPILED := '/(tests?|Cython|IPython|PIL|debugpy|fontTools|jedi|matplotlib|mypyc?|pip|prompt_toolkit|pygments|setuptools)/'

$(INSTALLED): pyproject.toml setup.py requirements.lock requirements-build.lock $(wildcard broker/*/*.p[xy][xi] broker/*/*.h broker/*/*/*.p[xy][xi])
	@sh .ci/prerequisites $(PYTHON)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements-build.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable . & built=$$!; \
	$(BIN)/python -m pip install --quiet --no-compile --no-deps --require-hashes --no-build-isolation -r requirements.lock \
		|| { wait; exit 1; }; \
	$(BIN)/python -m compileall -q -j 0 -x $(UNCOMPILED) $(VENV)/lib >/dev/null; wait $$built
	@touch $@

# Tools that only these two need have a .venv of their own.
TOOLS := build/tools
LOCK = $(TOOLS)/bin/uv pip compile --quiet --universal --upgrade --generate-hashes --python-version 3.11 \
	--custom-compile-command "make lock"

lock:
	$(PYTHON) -m venv $(TOOLS) && $(TOOLS)/bin/pip install --quiet "uv>=0.9,<1"
	$(LOCK) --all-extras pyproject.toml -o requirements.lock
	printf '%s\n' "pip>=24" "setuptools>=84.1" wheel "Cython>=3.1,<4" | \
		$(LOCK) --allow-unsafe --constraint requirements.lock - -o requirements-build.lock

sbom: install
	$(PYTHON) -m venv $(TOOLS) && $(TOOLS)/bin/pip install --quiet "cyclonedx-bom>=7,<8"
	$(TOOLS)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible -o build/sbom.json $(BIN)/python

quickstart: install
	$(BIN)/python -m examples.quickstart $(if $(BROKERS),--brokers-count $(BROKERS)) $(if $(SECURE),--secure)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Lint runs beside the tests. There are three workers, as many tests only wait. Their files lie in memory where there
# is room: on a disk they wait for its fsyncs.
check: install
	$(MAKE) --no-print-directory --jobs 2 --output-sync lint quick

quick: install
	$(SCRATCH) $(BIN)/python -m pytest -q -n 3 -m "not process and not slow" -o tmp_path_retention_policy=failed tests/unit

# The first lane (docs/adr/0144): what a person runs once and judges by. One worker for each core, one for what waits,
# and lint beside them (docs/adr/0150).
test: install
	$(SCRATCH) PYSPARK_PYTHON=$(CURDIR)/$(BIN)/python $(BIN)/python -m tests first --lint

test-long: install
	PYSPARK_PYTHON=$(CURDIR)/$(BIN)/python $(BIN)/python -m tests $(or $(SHARD),long)

# The lock has the newest Spark; the release that is tested is put in its place.
SPARK ?= 4.2.1
OTHER := build/spark-$(SPARK)
test-spark:
	$(MAKE) --no-print-directory VENV=$(OTHER) install
	$(OTHER)/bin/python -m pip install --quiet --no-deps --no-build-isolation pyspark==$(SPARK)
	PYSPARK_PYTHON=$(CURDIR)/$(OTHER)/bin/python $(OTHER)/bin/python -m tests spark $(FILES)

bench: install
	PYSPARK_PYTHON=$(CURDIR)/$(BIN)/python $(BIN)/python -m benchmarks

prop: install
	$(BIN)/python -m tests.properties --minutes $(MINUTES)

fuzz: install
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES) $(if $(GUIDED),--guided)

soak: install
	$(BIN)/python -m tests.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(BROKERS),--brokers $(BROKERS))

sim: install
	$(BIN)/python -m tests.sim $(if $(findstring ..,$(SEED)),--seeds $(SEED),$(if $(SEED)$(MUTANT),$(if $(SEED),--seed $(SEED)),--seed 0)) $(if $(STEPS),--steps $(STEPS)) $(if $(MUTANT),--mutant "$(MUTANT)")

chaos: install
	$(BIN)/python -m tests.cluster $(if $(ROUNDS),--rounds $(ROUNDS),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) $(if $(HISTORY),--history "$(HISTORY)")

clean:
	rm -rf $(VENV) build dist fuzz-failures chaos-history *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis liftlog-data quickstart-data
	find broker spark_liftlog pyspark_liftlog tests benchmarks examples -name __pycache__ -prune -exec rm -rf {} +
	rm -f broker/api/_checked.c broker/ingest/_intake.c broker/api/gathered/_gathering.c broker/client/payload/_json.c broker/serving/liftbridge/_records.c broker/api/*.so broker/api/*/*.so broker/ingest/*.so broker/client/*/*.so broker/serving/*/*.so
