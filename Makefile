# Extra arguments for demo, test, bench and others: make test ARGS="order"
ARGS ?=
# How long to soak, and which faults; without a seed, others each time
MINUTES ?= 10
SEED ?=

.DEFAULT_GOAL := help
.PHONY: help setup up down demo test test-all test-pooler faults manifests metrics-page dashboard screenshots model mutants mutants-pure bench bench-quick bench-publish bench-pure bench-idempotency soak fmt lint deny clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install what this machine lacks (Debian, Ubuntu)
	@deploy/dev/setup

up: setup ## Start a throwaway PostgreSQL and Kafka
	@deploy/dev/stack up

down: ## Stop them and delete their data
	@deploy/dev/stack down

demo: setup ## Run the demo: make demo ARGS="..."
	@cargo build --release --locked --package outboxd --package outboxd-demo
	@target/release/outboxd-demo $(ARGS)

test: setup ## Format check, lints and all tests: make test ARGS="order"
	@deploy/dev/test $(ARGS)

# What is long and rarely broken. Its parts stop at the first that fails.
test-all: ## What a release runs: make test, the long tests, the pooler, the model, all mutants, a soak (hours)
	@deploy/dev/setup --all
	@deploy/dev/test
	@deploy/dev/with-stack cargo test --locked --all-features -- --ignored
	@deploy/dev/test --pooler
	@$(MAKE) --no-print-directory model mutants
	@$(MAKE) --no-print-directory soak MINUTES=$(MINUTES)

test-pooler: setup ## All tests of the relay through PgBouncer in transaction mode
	@deploy/dev/test --pooler $(ARGS)

faults: setup ## Inject every fault and write docs/faults.md anew
	@OUTBOXD_WRITE_FAULTS=1 deploy/dev/with-stack cargo test --locked --all-features --test it -- faults:: scaling:: --skip documented::
	@deploy/dev/faults-table docs/faults.md

screenshots: ## Take the pictures of the page anew
	@deploy/dev/setup --all
	@OUTBOXD_WRITE_SCREENSHOTS=1 deploy/dev/with-stack cargo test --locked --all-features --test it -- --ignored ui::browser::screenshots

metrics-page: ## Write docs/metrics.md anew from src/metrics
	@OUTBOXD_WRITE_METRICS=1 cargo test --quiet --locked --all-features --lib metrics::page::

dashboard: ## Write deploy/grafana/dashboard.json anew from tests/it/monitoring/panels.rs
	@OUTBOXD_WRITE_DASHBOARD=1 cargo test --quiet --locked --all-features --test it -- monitoring::dashboard::

manifests: ## Write deploy/kubernetes anew from the chart
	@deploy/dev/setup --all
	@deploy/kubernetes/print

mutants: setup ## Break each guard on purpose and show the test that notices: make mutants ARGS="NAME..."
	@deploy/dev/with-stack deploy/dev/mutants $(ARGS)

model: ## Check the protocol's model in every state within its bounds
	@cargo test --locked --all-features --test model -- --nocapture $(ARGS)

mutants-pure: ## Break the pure parts in every small way: their unit tests must notice
	@command -v cargo-mutants >/dev/null || cargo install cargo-mutants --locked
	CARGO_TARGET_DIR=$(CURDIR)/target/mutants-pure cargo mutants -j1 --output target $(ARGS)

# Built before the stack is up: a compiler beside it would be measured as well.
bench: setup ## Measure everything beside its limits: make bench ARGS="--only drain,latency --rounds 3"
	@cargo bench --quiet --locked --bench relay --no-run
	@deploy/dev/with-stack cargo bench --quiet --locked --bench relay -- $(ARGS)

bench-quick: ## The same in small, in a few minutes
	@$(MAKE) --no-print-directory bench ARGS="--quick $(ARGS)"

bench-publish: ## Put the last report of make bench into the README and docs/performance.md
	@benches/publish-report

bench-pure: ## Measure the parts that do no I/O: make bench-pure ARGS="outcome"
	@cargo bench --quiet --locked --bench pure -- $(ARGS)

bench-idempotency: setup ## Measure what a command and its replay cost: make bench-idempotency ARGS="5 5"
	@cargo build --quiet --release --locked --package outboxd
	@benches/idempotency $(ARGS)

# Without failpoints: what is soaked is what ships.
soak: setup ## Break things for long and see what holds: make soak MINUTES=60 SEED=42
	@cargo test --quiet --release --locked --test soak -- --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

fmt: ## Format the code
	cargo fmt --all

lint: ## The lints that `make test` enforces
	cargo clippy --all-targets --all-features --locked -- -D warnings
	cargo clippy --test soak --all-features --locked -- -D warnings

deny: ## Check licences, sources and advisories of the dependencies
	@command -v cargo-deny >/dev/null || cargo install cargo-deny --locked
	cargo deny check bans licenses sources
# Advisories come over the network. Without them the rest still counts; a finding fails.
	@if cargo deny fetch db; then cargo deny check --disable-fetch advisories; \
	else echo "deny: advisories not checked, their database cannot be reached" >&2; fi

clean: down ## Delete everything built, fetched and started here
	cargo clean
	rm -rf .dev
