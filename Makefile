# Busway: `make up` runs it, `make test` proves it. Python >= 3.11, make and git are all that must be there.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
VENV ?= .venv
ARGS ?=
# Of a storm: what is asked and broken follows from the seed.
SEED ?= 1
SECONDS ?= 60
# PyPI's torch for Linux brings CUDA, some gigabytes. Without a GPU this is enough:
#   make up TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
TORCH := 2.13.0

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check
# A requirement file, because pip before 25.1 cannot read dependency groups.
DEV := import tomllib; print("\n".join(tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["dev"]))

# $(PHASE) "what" "what to do if it fails" command ...: runs it, says how long it took.
PHASE := phase() { what=$$1; cure=$$2; shift 2; echo "==> $$what"; begin=$$(date +%s); \
	"$$@" || { echo "error: $$what failed. $$cure" >&2; exit 1; }; \
	echo "    took $$(($$(date +%s) - begin)) s"; }; phase
ONLINE := The package index must be reachable for this, once; see the message above.

.DEFAULT_GOAL := help
.PHONY: help up test check bench storm clean install dev model

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-6s  %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

up: install ## Install what is missing, fetch the model, run the fleet; ARGS="--engine echo --workers 2"
	@exec $(BIN)/busway up $(ARGS)

test: dev model ## Run the whole test suite; ARGS="-k lanes"
	@$(BIN)/python -m pytest -m "not bench" $(ARGS)

check: dev ## Lint, formatting, types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright --pythonpath $(BIN)/python

bench: dev model ## Measure: the queue, the lanes, the policies, the engine
	@for name in overhead interference batching engine; do \
		echo "==> $$name" && $(BIN)/python -m tests.bench.$$name $(ARGS) || exit 1; done

storm: dev ## Break everything while clients ask; SEED=1 SECONDS=60 ARGS="--json FILE"
	@exec $(BIN)/python -m tests.fault.storm --seed $(SEED) --seconds $(SECONDS) $(ARGS)

clean: ## Remove the environment and all that is built; the model and .busway/ stay
	rm -rf $(VENV) dist build .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

install: $(VENV)/installed ## Install what `busway` needs into $(VENV); on a machine that shares a broker with others

dev: $(VENV)/dev-installed

model: install
	@$(PHASE) "the models" "See the message above." $(BIN)/python -m worker.engines.weights --built-in

$(BIN)/python:
	@$(or $(PYTHON),false) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "error: Python 3.11 or newer is needed; name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "error: $(PYTHON) lacks the venv module (Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@rm -rf $(VENV)
	@$(PHASE) "a virtual environment in $(VENV)" "" $(PYTHON) -m venv $(VENV)

# torch first and pinned: asked for by transformers alone, pip would take another build of it.
$(VENV)/torch-$(TORCH): | $(BIN)/python
	@$(PHASE) "torch $(TORCH), the longest download" "$(ONLINE)" \
		$(PIP) torch==$(TORCH) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	@touch $@

# A checkout gives pyproject.toml a new time even if it is the same, so its text decides.
$(VENV)/installed: pyproject.toml $(VENV)/torch-$(TORCH)
	@cmp -s pyproject.toml $@ || { $(PHASE) "Busway and what it needs" "$(ONLINE)" $(PIP) --quiet -e '.[all]'; }
	@cp pyproject.toml $@

$(VENV)/dev-installed: pyproject.toml $(VENV)/installed
	@cmp -s pyproject.toml $@ || { $(BIN)/python -c '$(DEV)' > $(VENV)/dev.txt && \
		$(PHASE) "the tools of the tests" "$(ONLINE)" $(PIP) --quiet -r $(VENV)/dev.txt; }
	@cp pyproject.toml $@
