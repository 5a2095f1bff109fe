# make serve, make test; `make help` lists the rest.

ARGS ?= --shards 4 --mode subinterp
MODEL ?=
ENVS ?=
PYTEST_ARGS ?=

# A folder that was moved or copied has its old place written in its environments.
moved = $(shell [ "$$(cat $(1)/.installed 2>/dev/null)" = "$(CURDIR)" ] || echo FORCE)
inputs = pyproject.toml tools/constraints.txt tools/install.sh tools/warm_up.py

.PHONY: help serve install test free-threaded lint docs format lock clean FORCE

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo 'make serve MODEL=/path/to/model ARGS="--shards 2 --mode process --port 8000"'
	@echo 'make test ENVS="py313 lint" PYTEST_ARGS="-k stream"'
	@echo 'PYTHON=/path/to/python3.13 chooses the interpreter of a new environment.'

serve: .venv/.installed ## install what is missing and serve: the built-in demo model, or MODEL=DIR; ARGS="..." replaces "--shards 4 --mode subinterp"
	@exec env -u PYTHONDONTWRITEBYTECODE .venv/bin/python -m sglang_subgw $(if $(MODEL),--model-path "$(MODEL)") $(ARGS)

install: .venv/.installed ## only install (.venv, with SGLang 0.5.23)

.venv/.installed: $(inputs) $(call moved,.venv)
	@tools/install.sh serve

.venv-tools/.installed: $(inputs) $(call moved,.venv-tools)
	@tools/install.sh tools

test: .venv-tools/.installed ## tox: every environment this machine can provide; ENVS="py313 lint" for some
	@.venv-tools/bin/python tools/run_tox.py $(ENVS) -- $(PYTEST_ARGS)

free-threaded: ## find or build a free-threaded CPython 3.13 (about 5 minutes, once) and print its path
	@tools/build_free_threaded.sh

lint: .venv-tools/.installed ## ruff, mypy and the layout
	@.venv-tools/bin/python tools/run_tox.py lint

docs: .venv-tools/.installed ## build the documentation: build/docs/index.html
	@.venv-tools/bin/python tools/run_tox.py docs

format: .venv-tools/.installed ## let ruff reformat and fix
	@.venv-tools/bin/tox -q exec -e lint -- ruff check --fix .
	@.venv-tools/bin/tox -q exec -e lint -- ruff format .

lock: .venv-tools/.installed ## bring tools/constraints.txt up to date with pyproject.toml
	@UV_SYSTEM_CERTS=1 .venv-tools/bin/uv pip compile -q --upgrade --universal --python-version 3.13 --no-annotate --no-header \
		--extra fast --group engine --group test --group lint --group docs --group ray --group tools \
		--output-file tools/constraints.txt pyproject.toml
	@echo "tools/constraints.txt: $$(grep -c == tools/constraints.txt) packages"

clean: ## remove the environments and caches of this folder
	rm -rf .venv .venv-tools .tox .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist src/*.egg-info .setup-error
	find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
