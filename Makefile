# Everything that one does with this repository. `make help` lists it.

CARGO ?= cargo

# What `make bench` passes on to the measures of one remote: make bench BENCH="--help".
# Without it, `tidewater bench remotes` runs too.
BENCH ?=

# What `make simulate` runs: a range of seeds, or one.
SIMULATE ?= --seeds 0..100000

# What `make rig` passes on to the fault rig: make rig RIG="--seconds 3600"
RIG ?=

# What `make fuzz` fuzzes, and for how long.
TARGET ?=
SECONDS ?= 60

.PHONY: help build fips demo test simulate rig fuzz sanitize coverage bench fmt clean

help: ## List what there is to do
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build the tidewater program alone, optimized, into target/release
	$(CARGO) build --release -p tidewater-cli

fips: ## Build it with cryptography in FIPS mode; needs cmake and Go. Tests that it is in use
	$(CARGO) test -p tidewater-carrier --features fips,tokio fips
	$(CARGO) build --release -p tidewater-cli --features fips

# Not optimized, because the first success should come soon. The build shows its progress, the
# demonstration has the screen.
demo: ## Watch remotes sync with a central SQLite database; needs Rust and a C compiler
	$(CARGO) build --profile quick -p tidewater-cli
	@$(CARGO) run -q --profile quick -p tidewater-cli -- demo

test: ## Do all that CI does: format, lints, tests, documents
	@scripts/test.sh

simulate: ## Run 100,000 simulated histories, optimized; SIMULATE="--seed N" replays one
	$(CARGO) run --release -p tidewater-simulator --bin tidewater-simulator -- $(SIMULATE)

rig: ## Break real servers, remotes and PostgreSQL for 10 minutes; RIG="..." passes arguments on
	$(CARGO) build --release -p tidewater-cli -p tidewater-rig
	@$(CARGO) run -q --release -p tidewater-rig -- $(RIG)

fuzz: ## Fuzz one target for some seconds: make fuzz TARGET=frames SECONDS=60
	@scripts/fuzz.sh "$(TARGET)" "$(SECONDS)"

sanitize: ## Run the tests of all code that uses `unsafe` under AddressSanitizer
	@scripts/sanitize.sh

coverage: ## Tell which share of lines the tests of the main crates run
	@scripts/coverage.sh

bench: ## Measure against the budgets, optimized; BENCH="..." passes arguments on
	$(CARGO) bench -p tidewater-bench --bench measures -- $(BENCH)
ifeq ($(BENCH),)
	$(CARGO) build --release -p tidewater-cli -p tidewater-bench
	"$${CARGO_TARGET_DIR:-target}/release/tidewater" bench remotes
endif

fmt: ## Format all Rust code
	$(CARGO) fmt --all

clean: ## Remove everything that was built
	$(CARGO) clean
