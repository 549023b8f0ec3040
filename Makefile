# Holdfast. `make demo` shows it, `make test` checks it; both set up what they need.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# Tests are timed and share two cores: their steps come one after the other, whatever -j says.
.NOTPARALLEL:

CARGO ?= cargo
# Worlds that the simulator runs, and how long each fuzzer runs. So few and so short on every change; many and long from time to time.
SEEDS ?= 2500
FUZZ_SECONDS ?= 15

CACHE := $(or $(XDG_CACHE_HOME),$(or $(HOME),/root)/.cache)
export HOLDFAST_TOOLS ?= $(CACHE)/holdfast/tools
# What is shown and measured, and what is tested: the latter is built as the tests are, and panics where a number overflows.
RELEASE := $(CURDIR)/target/release/holdfast
export HOLDFAST_BIN := $(CURDIR)/target/debug/holdfast
export PATH := $(HOLDFAST_TOOLS)/bin:$(PATH)
export FUZZ_SECONDS

STEPS := lint unit loom fuzz sim e2e

.PHONY: help setup packages build tests demo test bench clean $(STEPS)

help: ## Say what there is
	@grep -hE '^[a-z0-9]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

setup: ## Install what is missing: Debian packages, cargo's tools
	@packaging/setup.sh

packages:
	@packaging/setup.sh packages

build: packages ## Build the binary, target/release/holdfast
	$(CARGO) build --locked --release -p holdfast

demo: build ## Show connections surviving kill -9 (root)
	$(RELEASE) demo

test: setup ## Everything that gates, with a count of it all at the end (root)
	@tests/all.sh $(STEPS)

lint: setup ## Formatting, clippy, that lock files are up to date, licences and sources of dependencies
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	$(CARGO) metadata --locked --manifest-path fuzz/Cargo.toml --format-version 1 > /dev/null
	tests/deny.sh

unit: tests ## Unit, property, scenario, documentation and compile-fail tests
	$(CARGO) test --locked --workspace --exclude holdfast-tests --no-fail-fast

loom: setup ## What processes share, under every interleaving
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom $(CARGO) test --locked -p holdfast-io --release --test rings_loom

fuzz: setup ## Every fuzzer for FUZZ_SECONDS
	tests/fuzz.sh

tests: setup
	$(CARGO) test --locked --workspace --no-run

sim: tests ## SEEDS worlds of the deterministic simulator
	$(HOLDFAST_BIN) sim --seeds $(SEEDS)
	$(HOLDFAST_BIN) sim --from 1000000 --seeds $(SEEDS)
	$(HOLDFAST_BIN) sim --from 10000000 --seeds $$(( $(SEEDS) / 2 ))
	$(HOLDFAST_BIN) sim --from 20000000 --seeds $$(( $(SEEDS) / 2 ))
	$(HOLDFAST_BIN) sim --from 30000000 --seeds $$(( $(SEEDS) / 4 ))

e2e: tests ## Real clients and servers in network namespaces (root)
	$(CARGO) test --locked -p holdfast-tests --no-fail-fast

bench: build ## What the machinery costs per packet, message, seal, replica, standby, takeover, failover and migration (root; bench/README.md)
	$(RELEASE) bench datapath
	for flows in 10000 1000000; do $(RELEASE) bench datapath --flows $$flows; done
	$(RELEASE) bench replication
	$(RELEASE) bench reinforce
	$(RELEASE) bench rescue
	$(RELEASE) bench leases
	$(RELEASE) bench instances
	$(RELEASE) bench local
	$(RELEASE) bench takeover
	$(RELEASE) bench tenants
	$(RELEASE) bench failover
	$(RELEASE) bench rate
	$(RELEASE) bench recovery
	$(RELEASE) bench migration
	$(RELEASE) bench messages
	$(RELEASE) bench controls
	$(RELEASE) bench sealing

clean: ## Remove what was built
	rm -rf target
