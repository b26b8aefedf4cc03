# What a newcomer and the automation type. `make` alone lists it.
#
# Needs Python 3.11 or newer with pip, and make. Everything else is installed into .venv, at the
# versions of scripts/requirements/constraints.txt. Another interpreter: make install PYTHON=python3.13

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/sh

PYTHON ?=
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

LISTEN ?= 127.0.0.1:50051
STORE ?= sqlite:///var/routing.db
AGENTS ?= routing_service/examples/tax.yaml
CONSOLE ?= 127.0.0.1:50080

# A server that may not keep what Python compiles starts in 2.6 s rather than 1 s.
unexport PYTHONDONTWRITEBYTECODE

# The contract as it last landed, as a buf image: what `make lint` holds the next one to. A file
# rather than a commit, so that the check needs no git and a shallow clone has it too.
LANDED := protos/landed.binpb

.PHONY: help
help: ## list these targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "make %-18s %s\n", $$1, $$2}' Makefile

.PHONY: install
install: $(INSTALLED) ## make .venv: all distributions, editable, and the tools

# Repeated only when something it depends on has changed, so that a second `make run` starts at once.
$(INSTALLED): pyproject.toml clients/python/pyproject.toml topics/pyproject.toml scripts/requirements/constraints.txt scripts/install.sh
	@scripts/install.sh "$(VENV)" "$(PYTHON)"
	@touch $@

.PHONY: run
run: $(INSTALLED) ## serve the tax example on 127.0.0.1:50051, its console on http://127.0.0.1:50080
	@mkdir -p var
	@exec $(BIN)/agent-routing serve --listen $(LISTEN) --store $(STORE) --agents $(AGENTS) --console-listen $(CONSOLE)

.PHONY: test
test: $(INSTALLED) ## run the tests on all cores; some, also long ones: make test args="-k sticky"
	@$(BIN)/python -m pytest --numprocesses auto --dist worksteal $(or $(args),$(NOT_LONG))

NOT_LONG := -m "not long and not torture and not clients and not install"

.PHONY: test-long
test-long: $(INSTALLED) ## run what takes seconds a test: kills, failing engines, every page of the docs
	@$(BIN)/python -m pytest -m "long and not torture and not clients and not install" --numprocesses auto --dist worksteal $(args)

# What `make test` leaves out of the clients in Go and TypeScript. A toolchain that is missing is a
# skip by name; where CI is set, a failure.
.PHONY: test-clients
test-clients: $(INSTALLED) ## test the clients of other languages at length: races, generated code, style
	@$(BIN)/python -m pytest -m clients --numprocesses auto --dist worksteal tests/clients $(args)

# Frameworks pin what others of them cannot live with. Some alone: make test-integrations
# frameworks="langgraph google-adk"
.PHONY: test-integrations
test-integrations: $(INSTALLED) ## test the adapters of agent frameworks, each in its own environment
	@scripts/integrations.sh $(VENV) $(frameworks)

TORTURE = $(BIN)/python -m pytest -m torture --timeout 3600 --capture=no

# All of it takes about two hours on two cores without other work, so it has three parts.
.PHONY: torture
torture: $(INSTALLED) ## run the long tests: kills, faults, load; prints their figures
ifdef args
	@$(TORTURE) $(args)
else
	@$(MAKE) --keep-going --no-print-directory torture-replicas torture-server torture-inputs
endif

.PHONY: torture-replicas torture-server torture-inputs
torture-replicas: $(INSTALLED)
	@$(TORTURE) tests --ignore tests/torture
torture-server: $(INSTALLED)
	@$(TORTURE) tests/torture --ignore tests/torture/test_fuzz.py --ignore tests/torture/test_inbox_kills.py
torture-inputs: $(INSTALLED)
	@$(TORTURE) tests/torture/test_fuzz.py tests/torture/test_inbox_kills.py

.PHONY: lint
lint: lint-style lint-types lint-layers lint-contract lint-spelling ## check style, types, layers, the contract and spelling (all of it: make -k lint)

.PHONY: lint-style lint-types lint-layers lint-contract lint-spelling
lint-style: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint-types: $(INSTALLED)
	$(BIN)/mypy routing_service clients/python/agent_routing topics/agent_routing_topics

lint-layers: $(INSTALLED)
	$(BIN)/lint-imports --no-logo

lint-contract: $(INSTALLED)
	$(BIN)/buf lint
	@if [ -f $(LANDED) ]; then echo "$(BIN)/buf breaking protos --against $(LANDED)"; \
		$(BIN)/buf breaking protos --against $(LANDED); \
	else echo "buf breaking: skipped, no contract has landed yet ($(LANDED) is not there)"; fi

lint-spelling: $(INSTALLED)
	$(BIN)/codespell

.PHONY: shape
shape: $(INSTALLED) ## print how large and how tangled the service is (args=--check: fail for a circle, an arrow back, a long function)
	@$(BIN)/python scripts/shape.py $(args)

.PHONY: format
format: $(INSTALLED) ## format, and mend what ruff can mend by itself
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: protos
protos: $(INSTALLED) ## generate what is generated of the clients: messages, errors, blocking calls
	@$(BIN)/python scripts/make_protos.py
	@$(BIN)/python scripts/make_errors.py
	@$(BIN)/python scripts/make_sync.py

.PHONY: protos-check
protos-check: $(INSTALLED) ## check that the generated code is what protos/ generates
	@$(BIN)/python scripts/make_protos.py --check
	@$(BIN)/python scripts/make_errors.py --check
	@$(BIN)/python scripts/make_sync.py --check

.PHONY: console
console: $(INSTALLED) ## build the console's page from console/ into the package; needs Node
	@$(BIN)/python scripts/console.py build

.PHONY: stubs
stubs: $(INSTALLED) ## generate the contract's code for the other clients; needs their toolchains
	@$(BIN)/python scripts/make_stubs.py

.PHONY: landed
landed: $(INSTALLED) ## record the contract as landed; refuses a change that breaks callers
	@if [ -f $(LANDED) ]; then $(BIN)/buf breaking protos --against $(LANDED); fi
	$(BIN)/buf build protos --exclude-source-info --output $(LANDED)

# A contract that lands without being recorded would not be guarded.
.PHONY: landed-check
landed-check: $(INSTALLED) ## check that the contract is recorded as landed
	@mkdir -p var
	@$(BIN)/buf build protos --exclude-source-info --output var/contract.binpb
	@cmp -s var/contract.binpb $(LANDED) || { \
		echo "$(LANDED) is not the contract in protos/: run make landed and commit it" >&2; exit 1; }
	@echo "$(LANDED) is current"

# mkdocs would rather sell the next thing than build: its banner is no warning of ours.
.PHONY: docs
docs: $(INSTALLED) ## build the documentation into build/site; a broken link or anchor is an error
	@# Not --quiet: mkdocs does not count warnings then, and --strict lets all of them pass.
	@mkdir -p build
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict 2>build/docs.log || \
		{ grep -vE '^(INFO|  - )' build/docs.log >&2; exit 1; }
	@echo "build/site/index.html"

.PHONY: scaling
scaling: $(INSTALLED) ## measure what docs/scaling.md and `agent-routing plan` are made from; on a quiet machine
	@$(BIN)/python -m benchmarks.capacity --write
	@$(BIN)/python scripts/make_scaling.py --write

.PHONY: bench
bench: $(INSTALLED) ## measure, ten minutes (make bench QUICK=1: one); more: make bench args="--help"
	@$(BIN)/python -m benchmarks $(if $(QUICK),--quick) $(args)

# A quarter of an hour; installs each of the others into an environment of its own.
.PHONY: compare
compare: $(INSTALLED) ## play the same stories with other frameworks; write docs/explanation/comparison.md
	@$(BIN)/python -m benchmarks.comparison $(args)

.PHONY: dist
dist: $(INSTALLED) ## build all distributions into dist/ and try them on oldest and newest versions
	@$(BIN)/python scripts/dist.py

# What docs/how-to/install.md installs from, until the packages are in registries.
.PHONY: packages
packages: $(INSTALLED) ## build what users install into dist/: wheels, npm, Go, Maven
	@$(BIN)/python scripts/dist.py --build
	@$(BIN)/python scripts/client_packages.py

.PHONY: release
release: $(INSTALLED) ## build and check all that a release publishes (key=PRIVATE.pem signs, image=no)
	@$(BIN)/python scripts/release.py $(if $(filter no,$(image)),--without-image) $(if $(key),--sign $(key))

# Needs buildah and mmdebstrap: scripts/toolchains.sh image. Docker builds deploy/Dockerfile without.
.PHONY: image
image: $(INSTALLED) ## build the image of Debian's packages, without Docker, into dist/image
	@$(BIN)/python scripts/image.py

.PHONY: chart
chart: $(INSTALLED) ## package the Helm chart into dist/
	@$(BIN)/python scripts/chart.py

.PHONY: test-install
test-install: $(INSTALLED) ## follow docs/how-to/install.md in clean folders, and time each path
	@$(BIN)/python -m pytest -m install --capture=no tests/install $(args)

.PHONY: topics
topics: $(INSTALLED) ## train the topic models from topics/training/field, and the corpora in ROUTING_DIALOGUES
	@$(BIN)/python scripts/train_topics.py $(args)

.PHONY: constraints
constraints: $(INSTALLED) ## pin the newest versions of all dependencies, to be tested
	@scripts/constraints.sh $(BIN)/python

.PHONY: clean
clean: ## remove environments, caches and build results; var/ (the data) stays
	rm -rf $(VENV) .venv-* build dist clients/python/dist
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
