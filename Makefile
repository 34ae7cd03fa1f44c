# Two targets do everything, on a machine that has Python 3.11 or newer and make.
#   make demo   create .venv, install, run the main job
#   make test   create .venv, install with the test extras, run the tests
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-slow lint types bench clean

demo: .venv/.installed
	$(BIN)/madao demo

test: .venv/.installed-test
	$(BIN)/python -m pytest -n auto -m "not slow" --dist loadfile

test-slow: .venv/.installed-test
	$(BIN)/python -m pytest -m slow

lint: .venv/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.installed-test
	$(BIN)/mypy

bench: .venv/.installed-bench
	$(BIN)/python benchmarks/speed/augment.py

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "madao needs Python 3.11 or newer; try make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv

.venv/.installed: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[train]'
	touch $@

.venv/.installed-test: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[test]'
	touch $@ .venv/.installed

.venv/.installed-bench: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[benchmark]'
	touch $@

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache build dist
