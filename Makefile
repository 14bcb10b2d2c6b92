# Everything a newcomer needs. `make` alone lists the targets.

VENV := .venv
BIN := $(VENV)/bin
# The Python of .venv, if there is one; PYTHON=/path/to/python3.13 replaces a .venv of another version.
PYTHON ?= $(shell $(BIN)/python -c '' 2> /dev/null && echo $(BIN)/python || echo python3)
STAMP := $(VENV)/.installed-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
SEED ?= 1
PART ?=
MINUTES ?= 55

# Programs that tests start by the hundred are compiled once, not each time.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help

.PHONY: help
help: ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

.PHONY: setup
setup: $(STAMP) ## Make .venv with lakebed and its tools in it

$(STAMP): pyproject.toml requirements/dev.txt
	$(PYTHON) tools/environment.py $(VENV) dev
	@touch $@

.PHONY: format
format: setup ## Format the code
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

.PHONY: lint
lint: setup ## Check format, lint and types
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

.PHONY: check
check: setup ## Format, lint, types and the quick tests
	@$(BIN)/python -m tools.run_tests check

.PHONY: java
java: ## Make sure of a Java runtime, which Spark needs
	@[ -n "$$JAVA_HOME" ] || command -v java > /dev/null || \
		{ command -v apt-get > /dev/null && { apt-get install -y -q default-jre-headless || \
			{ apt-get update -q && apt-get install -y -q default-jre-headless; }; }; } || \
		{ echo "Spark needs Java 17 or newer: install a Java runtime, such as OpenJDK's"; exit 1; }

.PHONY: test
test: setup java ## Everything that must pass before a change lands
	@$(BIN)/python -m tools.run_tests

.PHONY: test-busy
test-busy: setup java ## The same, three times, while other processes keep every core busy
	@for run in 1 2 3; do $(BIN)/python -m tools.run_tests --busy || exit 1; done

.PHONY: durations
durations: setup java ## Write tests/durations.json, which the order of the tests comes from
	@$(BIN)/python -m tools.run_tests --write-durations

.PHONY: test-pythons
test-pythons: ## The fast tests on every Python 3.11 to 3.13 that is installed
	$(PYTHON) tools/all_pythons.py

.PHONY: prove
prove: setup java ## The long proofs, in parts of an hour that can be continued; PART=kill, SEED=n
	@$(BIN)/python -m tools.prove $(PART) --seed $(SEED) --minutes $(MINUTES)

.PHONY: bench
bench: $(VENV)/.bench-installed ## Measure against the disk and against peers; writes bench/results/
	$(BIN)/python -m bench.wal
	$(BIN)/python -m bench.engine
	$(BIN)/python -m bench.lake
	$(BIN)/python -m bench.serve
	$(BIN)/python -m bench.spark

.PHONY: compare
compare: $(VENV)/.bench-installed java ## Compare with what you might pick instead; writes docs/comparison.md
	$(BIN)/python -m bench.compare

$(VENV)/.bench-installed: $(STAMP)
	$(PYTHON) tools/environment.py $(VENV) dev bench
	@touch $@

.PHONY: constraints
constraints: $(VENV)/.bench-installed ## Write the installed versions into constraints.txt, and their hashes into requirements/
	{ echo '# The versions that the tests run with. Regenerate: `make constraints`.'; \
		$(BIN)/pip freeze --all --exclude-editable; } > constraints.txt
	$(BIN)/python -m tools.lock

.PHONY: sbom
sbom: setup ## Write sbom.json: what is installed in .venv, as CycloneDX
	$(BIN)/python -m tools.sbom sbom.json

.PHONY: reference
reference: setup ## Write docs/python.md and the help texts of docs/cli.md from the code
	$(BIN)/python -m tools.reference

.PHONY: demo
demo: setup java ## Run the end-to-end demo: two kills, every record checked; writes demo/report.html
	@$(BIN)/lakebed demo

.PHONY: fresh
fresh: ## Try `make demo` and `make test` as on a fresh machine: a clone, an empty home, no caches
	$(PYTHON) tools/fresh_machine.py

.PHONY: clean
clean: ## Remove .venv, caches and what the demonstration has made
	rm -rf $(VENV) $(VENV)-3.* demo .bench-data .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist src/*.egg-info
