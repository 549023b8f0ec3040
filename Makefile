# Holdfast. `make demo` shows it, `make test` checks it; both set up what they need.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# Steps share two cores: they come one after the other, whatever -j says.
.NOTPARALLEL:

CARGO ?= cargo
export CARGO
# Which part of the soak, and whether at full length.
PART ?= 1/1
SIZE ?= full
export SIZE

CACHE := $(or $(XDG_CACHE_HOME),$(or $(HOME),/root)/.cache)
export HOLDFAST_TOOLS ?= $(CACHE)/holdfast/tools
# What is shown and measured, and what is tested: the latter is built as the tests are, and panics where a number overflows.
RELEASE := $(CURDIR)/target/release/holdfast
export HOLDFAST_BIN := $(CURDIR)/target/debug/holdfast
export PATH := $(HOLDFAST_TOOLS)/bin:$(PATH)
# All programs of the workspace are built at once, and each step runs some of them: one set of features, so nothing is built twice.
TEST := $(CARGO) test --locked --workspace

STEPS := lint unit loom conformance sim e2e

.PHONY: help setup build tests demo test quick soak bench clean $(STEPS)

help: ## Say what there is
	@grep -hE '^[a-z0-9]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

demo: ## Show connections surviving kill -9 (root; about 8 minutes the first time, then 2)
	@packaging/setup.sh demo
	@packaging/build.sh
	@$(RELEASE) demo

test: setup ## Everything that gates, with a count of it all at the end (root; about 20 minutes)
	@tests/all.sh lint unit loom conformance+sim+e2e

quick: setup ## For everyday work: lint, unit tests, 300 worlds, a dozen end-to-end tests (root; under 5 minutes on a built tree)
	@SEEDS=300 HOLDFAST_QUICK=1 tests/all.sh lint unit sim+e2e

soak: ## Everything at length: part PART=k/N of it, SIZE=small to try it; goes on where it was interrupted (root; hours)
	@packaging/setup.sh soak
	@tests/soak.sh $(PART)

setup: ## Install what `make test` needs: Debian packages, Rust where there is none, cargo's tools
	@packaging/setup.sh gate

build: ## Build target/release/holdfast, and holdfast-lab, which shows and measures
	@packaging/setup.sh demo
	@packaging/build.sh

lint: setup ## Formatting, clippy, licences and sources of dependencies
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	tests/deny.sh

tests: setup
	$(TEST) --no-run

unit: tests ## Unit, property, scenario, fuzz corpus, documentation and compile-fail tests
	HOLDFAST_E2E=0 HOLDFAST_CONFORMANCE=0 $(TEST) $(if $(HOLDFAST_QUICK),--exclude holdfast-sim --exclude holdfast-fuzz) --no-fail-fast

conformance: tests ## Every protection passes one suite: a share of its failures (tests/README.md)
	$(TEST) --test conformance

sim: tests ## SEEDS worlds (6,000) of the deterministic simulator: known ones, fixed ones, new ones
	tests/worlds.sh

loom: setup ## What processes share, under every interleaving
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom $(CARGO) test --locked -p holdfast-io --release --test rings_loom

e2e: tests ## Real clients and servers in network namespaces (root)
	$(TEST) --test e2e

bench: build ## What the machinery costs per packet, message, seal, replica, standby, takeover, failover and migration (root; bench/README.md)
	$(RELEASE) bench datapath
	for flows in 10000 1000000; do $(RELEASE) bench datapath --flows $$flows; done
	for name in replication box reinforce rescue leases instances local takeover tenants failover memory questions rate recovery migration messages controls sealing functions growth; do \
		$(RELEASE) bench $$name; done

clean: ## Remove what was built
	rm -rf target
