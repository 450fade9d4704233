# Everything runs in an environment of its own; a bare machine needs Python >= 3.11, make and a
# package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOB := examples/sc21_145_6b.toml
OUT := out/sc21_145_6b
JOBS ?= 2

.PHONY: run test check format clean

run: $(VENV)/.run
	@mkdir -p out
	$(BIN)/bubblescope simulate $(JOB) --tokens 300e9 \
		-o $(OUT).txt -o $(OUT).html -o $(OUT).svg -o $(OUT).json

test: $(VENV)/.dev
	$(BIN)/python -m pytest -q -n $(JOBS)

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(VENV)/.run: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or later is needed, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dashboard]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints-dev.txt $(VENV)/.run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints-dev.txt -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) out build dist
