# Everything runs in an environment of its own; a bare machine needs Python >= 3.11, make and a
# package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOB := examples/sc21_145_6b.toml
OUT := out/sc21_145_6b
JOBS ?= 2
PORT ?= 8050

.PHONY: run test check format images clean

run: $(VENV)/.run
	@mkdir -p out
	$(BIN)/bubblescope simulate $(JOB) --tokens 300e9 \
		-o $(OUT).txt -o $(OUT).html -o $(OUT).svg -o $(OUT).json
	@echo "published for this run: 148 TFLOP/s per GPU, recomputation counted (SC'21, Table 1)"
	$(BIN)/bubblescope dashboard --job $(JOB) --port $(PORT) --no-browser

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

# The pictures of the README and docs/.
images: $(VENV)/.dev
	$(BIN)/bubblescope simulate --uniform 1,2 --pp 4 --microbatches 8 --schedule gpipe \
		--no-gantt -o docs/images/gpipe.svg
	$(BIN)/bubblescope simulate --uniform 1,2 --pp 4 --microbatches 8 --schedule 1f1b \
		--no-gantt -o docs/images/1f1b.svg -o docs/images/1f1b.gif
	$(BIN)/bubblescope simulate --uniform 1,2 --pp 4 --microbatches 8 --vpp 2 \
		--schedule interleaved --no-gantt -o docs/images/interleaved.svg
	$(BIN)/bubblescope simulate --uniform 1,2 --pp 64 --microbatches 512 --schedule 1f1b \
		--no-gantt -o docs/images/1f1b_64_ranks.png
	$(BIN)/bubblescope simulate $(JOB) --no-gantt -o docs/images/sc21_145_6b.svg
	$(BIN)/bubblescope simulate --uniform 1,1,1 --pp 8 --microbatches 20 --schedule dualpipe \
		--no-gantt -o docs/images/dualpipe.svg
	$(BIN)/bubblescope simulate --uniform 1,2 --latency 0.3 --pp 4 --microbatches 8 \
		--schedule 1f1b --no-gantt --critical-path -o docs/images/critical_path.svg
	$(BIN)/bubblescope compare --schedules all --pp 8 --microbatches 32 \
		-o docs/images/schedules.png

	$(BIN)/bubblescope sensitivity examples/small_8_gpus.toml -o docs/images/sensitivity_small_8_gpus.svg
	$(BIN)/python examples/planner_pictures.py --images docs/images
	$(BIN)/python examples/hetpipe.py --images docs/images
	$(BIN)/python examples/elastic.py --images docs/images
	$(BIN)/python examples/sc21_figures.py docs/images
	$(BIN)/python examples/dashboard_pictures.py docs/images
	$(BIN)/python examples/dashboard_scenes.py docs/images

clean:
	rm -rf $(VENV) out build dist
