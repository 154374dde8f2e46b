# `make` alone says what there is. Every target sets itself up in .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup browser demo test check bench docs accuracy coverage-models gpu clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV); the first time takes a few minutes."
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

setup: $(STAMP) ## Create .venv with everything for development

browser: ## Install Chromium for the picture tests, where that takes no password
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null \
	  || command -v google-chrome >/dev/null \
	  || if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	       apt-get update -qq && apt-get install -qq -y chromium >/dev/null; \
	     else echo "No Chromium here: the picture tests will be skipped."; fi

demo: $(STAMP) ## Predict a script on three GPUs, with a report, and train in a budget
	@mkdir -p build
	@$(BIN)/ebbtide predict examples/train_gpt2.py \
	  --gpu t4 --gpu l4 --gpu a100-40gb --html build/demo.html --force; \
	  code=$$?; test $$code -le 1 || exit $$code
	@echo "The report: build/demo.html"
	@$(BIN)/python examples/fit_gpt.py --budget 110MiB

test: $(STAMP) browser ## Run all tests, with branch coverage
	$(BIN)/python -m pytest -n 2 --dist worksteal --cov --cov-report=term

check: $(STAMP) ## Run every static check that CI runs
	$(BIN)/python tools/check.py

bench: $(STAMP) ## Put other estimators beside Ebbtide on the same measured rows
	$(BIN)/python bench/predict.py

docs: $(STAMP) ## Build the site into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --clean
	@echo "The site: site/index.html"

accuracy: $(STAMP) ## Compare with every measured row; fails above the bounds
	$(BIN)/python bench/accuracy.py

coverage-models: $(STAMP) ## Count the Transformers, timm and torchvision models that work
	$(BIN)/python bench/coverage_models.py --suite transformers
	$(BIN)/python bench/coverage_models.py --suite torchvision
	$(BIN)/python bench/coverage_models.py --suite timm

gpu: ## On a CUDA machine: compare predictions with what the GPU measures
	bash bench/gpu_check.sh

clean: ## Remove what was built, keeping .venv
	rm -rf build dist site .coverage* .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
