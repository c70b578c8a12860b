# Every target does its own set-up in .venv; a second run finds it done.
#
#   make demo     a small network, checked; the MNIST model, shown; a digits model, trained; a report
#   make test     the tests (ARGS="-k mask" picks some, ARGS="-m slow" the slow ones;
#                 WORKERS=0 for one process)
#   make lint     ruff: rules and layout         make format   let ruff mend both
#   make types    mypy, strict on src            make docs     the site, into site/
#   make setup    only the set-up for development

PYTHON ?= python3
ARGS ?=
WORKERS ?= 2
BIN := .venv/bin
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1 \
	$(BIN)/python -m pip install -qq -c constraints.txt

.PHONY: help setup demo test lint format types docs clean
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

help:
	@sed -n '1,/^$$/s/^# \{0,1\}//p' Makefile

demo: .venv/.user
	@$(BIN)/mintnet demo

test: .venv/.dev
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

lint: .venv/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: .venv/.dev
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: .venv/.dev
	@$(BIN)/mypy

docs: .venv/.dev
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --clean

setup: .venv/.dev
	@echo "Ready: $(BIN)/mintnet"

clean:
	rm -rf .venv site dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv/.torch: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
		echo "mintnet needs Python 3.11 to 3.13, and $(PYTHON) is $$($(PYTHON) -V 2>/dev/null || echo missing)." >&2; \
		echo "Name another one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
		echo "Making a virtual environment in .venv"; $(PYTHON) -m venv --clear .venv; }
	@echo "Installing PyTorch (the largest part)"
	@$(PIP) torch
	@touch $@

.venv/.user: .venv/.torch pyproject.toml
	@echo "Installing mintnet with its command line"
	@$(PIP) -e '.[cli]'
	@touch $@

.venv/.dev: .venv/.torch pyproject.toml
	@echo "Installing mintnet and the tools for development"
	@$(PIP) -e '.[dev]'
	@touch .venv/.user $@
