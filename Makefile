# Everything runs in .venv, made from the one constraints file. `make demo` is the first thing to try.
PYTHON ?= python3
BIN := .venv/bin
CONFIG ?= examples/demo.toml

.PHONY: demo test test-harness chaos check bench setup clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing torch (CPU), ray, transformers and the rest into .venv: about 500 MB to download, 2 GB on disk, 1-3 minutes"
	@began=$$(date +%s); $(BIN)/pip install --disable-pip-version-check -q -c constraints.txt -e '.[run,smollm2,lora,dev]' \
	  && echo "installed in $$(( $$(date +%s) - began )) s"
	touch $@

demo: setup
	$(BIN)/qwengyre train $(CONFIG)

test: setup
	$(BIN)/pytest -q -n 4 --dist loadfile

test-harness: setup
	$(BIN)/pytest -v -n 2 --dist load -m harness --timeout 1200 tests/harness

chaos: setup
	$(BIN)/pytest -q -m chaos

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports
	$(BIN)/python scripts/size.py

bench: setup
	$(BIN)/python bench/engine.py

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
