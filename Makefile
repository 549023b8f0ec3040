# Holdfast. `make demo` shows it, `make test` checks it; both set up what they need.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CARGO ?= cargo
SEEDS ?= 10000
export HOLDFAST_BIN := $(CURDIR)/target/release/holdfast

.PHONY: help setup build demo test lint unit loom fuzz sim e2e bench clean

help: ## Say what there is
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | sort

setup: ## Install what is missing
	@packaging/setup.sh

build: setup ## Build the binary
	$(CARGO) build --release -p holdfast

demo: build ## Show connections surviving kill -9 (root)
	$(HOLDFAST_BIN) demo

lint: setup ## Formatting, clippy
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

unit: setup ## Unit, property, scenario and compile-fail tests
	$(CARGO) test --workspace --exclude holdfast-tests

loom: setup ## The rings between processes under every interleaving
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom $(CARGO) test -p holdfast-io --release --test rings_loom

sim: build ## The deterministic simulator
	$(HOLDFAST_BIN) sim --seeds $(SEEDS)

e2e: build ## Real clients and servers in network namespaces (root)
	$(CARGO) test -p holdfast-tests

test: lint unit loom sim e2e ## Everything that gates

bench: build ## What the machinery costs per packet
	$(HOLDFAST_BIN) bench datapath
	for flows in 10000 1000000; do $(HOLDFAST_BIN) bench datapath --flows $$flows; done

clean: ## Remove what was built
	$(CARGO) clean
