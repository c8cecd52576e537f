# `make run` and `make test` need only make and Python 3.11 or newer. Without PYTHON they take the newest that is there and for which
# all packages can be installed; with it, only that one.
PYTHON ?=
VENV ?= .venv
ARGS ?=
# Number of test processes; 0 runs the tests in the main process, for a debugger.
WORKERS ?= 4
RERUNS ?= 0
SEEDS ?= 1-2000
CYCLES ?= 200
COUNT ?= 1
RACE_RERUNS ?= 0

BIN := $(VENV)/bin
# The environment was made with another Python than is asked for: make it again.
ifneq ($(PYTHON),)
$(shell .ci/venv --outdate $(VENV) $(PYTHON))
endif

# Images of containers often set it. Then each Python compiles what it imports anew: the tests start thousands (brokers, commands,
# Spark's workers), each of which takes twice the CPU, and pytest rewrites all tests in each worker. Empty is as if it were not set.
test test-fast races sim kill kill-sink durable durable-machines fuzz: export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.PHONY: help run demo demo-page screenshots test test-fast java-clients compat-nodes races lint types ci docs proto accelerator wheel sim kill kill-sink durable durable-engines durable-machines fuzz bench bench-check docker-check clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1 - /p' $(MAKEFILE_LIST)

# The install is editable, so it is repeated only after a change of pyproject.toml. There is one stamp for each set of extras.
$(VENV)/.stamp-run: pyproject.toml .ci/venv
	@echo "Installing the broker into $(VENV)"
	@.ci/venv $(VENV) . $(PYTHON)
	@touch $@

$(VENV)/.stamp-spark: pyproject.toml .ci/venv
	@echo "Installing the broker and PySpark into $(VENV)"
	@.ci/venv $(VENV) '.[spark]' $(PYTHON)
	@touch $@ $(VENV)/.stamp-run

$(VENV)/.stamp-test: pyproject.toml .ci/venv
	@echo "Installing the broker and what its tests need into $(VENV)"
	@.ci/venv $(VENV) '.[test]' $(PYTHON)
	@touch $@ $(VENV)/.stamp-run $(VENV)/.stamp-spark

$(VENV)/.stamp-dev: pyproject.toml .ci/venv
	@echo "Installing the broker and its developers' tools into $(VENV)"
	@.ci/venv $(VENV) '.[dev]' $(PYTHON)
	@touch $@ $(VENV)/.stamp-test $(VENV)/.stamp-run $(VENV)/.stamp-spark

run: $(VENV)/.stamp-run ## serve on 127.0.0.1:9092, topics in ./broker-data (ARGS="--set key=value ...")
	@exec $(BIN)/broker serve $(ARGS)

demo: $(VENV)/.stamp-spark ## run the pipeline of docs/PIPELINE.md on Spark, kill it in the middle, and check its counts
	@$(BIN)/python docs/examples/demo.py

demo-page: $(VENV)/.stamp-run ## a broker with something to see on its page, until Ctrl-C (ARGS="--port 8080 --without-spark")
	@exec $(BIN)/python docs/examples/demo_page.py $(ARGS)

screenshots: $(VENV)/.stamp-test ## write the screenshots of docs/PAGE.md again (needs Chromium)
	@BROKER_SCREENSHOTS=docs/page $(BIN)/python -m pytest tests/page/test_screenshots.py

test: $(VENV)/.stamp-test ## all tests (ARGS="tests/storage -x", WORKERS=0 for a debugger, RERUNS=1 to run those that fail once more)
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --reruns $(RERUNS) $(ARGS)

# What is worth most in 210 s of CPU, without property tests. Two workers: each collects all tests before it begins.
FAST_WORKERS ?= 2
FAST := tests/config tests/contract tests/delivery tests/metadata tests/network tests/protocol tests/runtime tests/security tests/storage \
    tests/kafka/groups tests/kafka/handlers tests/kafka/share tests/kafka/transactions \
    tests/pulsar/dispatch tests/pulsar/entries tests/shuffle/partition tests/shuffle/serving \
    tests/test_docs.py tests/test_floors.py tests/test_mirror.py
test-fast: $(VENV)/.stamp-test ## most unit tests, without Spark: under 2 minutes on two idle cores (CONTRIBUTING.md says what it leaves out)
	@$(BIN)/python -m pytest -q -n $(FAST_WORKERS) --dist loadgroup -m "not slow and not hypothesis" $(FAST) $(ARGS)

java-clients: $(VENV)/.stamp-test ## get Kafka's and Flink's Java clients from PyPI, 600 MB, so that tests/compat runs them
	@$(BIN)/python tests/compat/java/fetch_jars.py

NODES ?= 3
compat-nodes: $(VENV)/.stamp-test ## Kafka's and Pulsar's clients against several nodes of one machine (NODES=3)
	@BROKER_NODES=$(NODES) $(BIN)/python -m pytest -n 0 $(wildcard tests/compat/test_*.py) tests/compat/pulsar $(ARGS)

# What threads share. Where the interpreter has a lock, it changes threads after every microsecond; free-threaded ones need no help.
RACES ?= tests/network tests/runtime tests/storage tests/delivery tests/shuffle tests/kafka/groups tests/kafka/share tests/metadata
races: $(VENV)/.stamp-test ## the tests of threads, which change places every µs (RACES="tests/shuffle", COUNT=5 times each)
	@for round in $$(seq $(COUNT)); do BROKER_RACES=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --reruns $(RACE_RERUNS) $(RACES) || exit 1; done

lint: $(VENV)/.stamp-dev ## ruff, as CI runs it
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(VENV)/.stamp-dev ## mypy, as CI runs it
	@$(BIN)/mypy

ci: ## everything that CI does
	@.ci/run

docs: $(VENV)/.stamp-run ## regenerate the generated parts of docs/
	@$(BIN)/python docs/generate.py

proto: $(VENV)/.stamp-dev ## regenerate protocol/pulsar/pulsar_pb2.py from pulsar.proto; protoc comes from PyPI
	@$(BIN)/python -m venv build/protoc
	@build/protoc/bin/python -m pip --disable-pip-version-check --quiet install grpcio-tools
	@build/protoc/bin/python -m grpc_tools.protoc -I protocol/pulsar --descriptor_set_out=build/pulsar.pb pulsar.proto
	@$(BIN)/python -m tests.protocol.pulsar.generate_pb2 < build/pulsar.pb
	@$(BIN)/ruff format --quiet protocol/pulsar/pulsar_pb2.py protocol/pulsar/pulsar_pb2.pyi

accelerator: $(VENV)/.stamp-run ## compile protocol/kafka/_runs.c for this checkout; wheels have it with BROKER_ACCELERATOR=1
	@$(BIN)/python packaging/accelerator.py

wheel: $(VENV)/.stamp-dev ## dist/*.whl and the source distribution
	@$(BIN)/python -m build

sim: $(VENV)/.stamp-test ## simulate the whole broker (SEEDS=1-2000)
	@$(BIN)/python -m tests.sim --seeds $(SEEDS)

kill: $(VENV)/.stamp-test ## kill -9 the broker, or one of several nodes, under load, many times (CYCLES=200)
	@BROKER_KILL_CYCLES=$(CYCLES) $(BIN)/python -m pytest tests/process/test_kill.py tests/process/test_nodes_kill.py tests/process/test_nodes_java.py

kill-sink: $(VENV)/.stamp-test ## kill -9 a streaming query, and the broker, at every step of the sink's commit
	@ALL_KILLS=1 $(BIN)/python -m pytest tests/spark/test_sink_kill.py

durable: CYCLES = 100
durable: $(VENV)/.stamp-test ## kill -9 the broker under all kinds of load and delete its disk, many times, with a standby (CYCLES=100)
	@$(BIN)/python -m tests.durable.cycles --cycles $(CYCLES)

durable-engines: KILLS = 12
durable-engines: AWAY = 60
durable-engines: $(VENV)/.stamp-test ## kill the database under load (KILLS=12); database and object store away for long (AWAY=60 s)
	@$(BIN)/python -m tests.durable.engines --kills $(KILLS) --away $(AWAY)

durable-machines: CYCLES = 20
durable-machines: LONGEST = 60
durable-machines: $(VENV)/.stamp-test ## lose machines of a cluster, have them stand still and cut them off, for up to LONGEST=60 s (CYCLES=20)
	@$(BIN)/python -m tests.durable.machine_cycles --cycles $(CYCLES) --longest $(LONGEST)

fuzz: $(VENV)/.stamp-test ## the property tests with many more examples
	@HYPOTHESIS_PROFILE=deep $(BIN)/python -m pytest tests/protocol tests/storage tests/network tests/kafka/groups tests/shuffle

bench: $(VENV)/.stamp-test ## measure what the broker costs, each figure in a process of its own
	@for scenario in kafka connections fsync scale pulsar security pieces; do \
		$(BIN)/python -m tests.bench $$scenario || exit 1; done
	@$(BIN)/python -m tests.bench shuffle --scale 0.3

BASE ?=
bench-check: $(VENV)/.stamp-test ## compare the broker's CPU with that of an earlier commit, the last release's or BASE=COMMIT; fails above 10 %
	@$(BIN)/python -m tests.bench check $(if $(BASE),--base $(BASE)) $(ARGS)

docker-check: ## build the image, start the broker in it and use it (buildah; skipped where tools are missing)
	@docker/check

clean: ## remove everything that was built, but not the topics in ./broker-data
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find broker protocol tests -name __pycache__ -prune -exec rm -rf {} +
