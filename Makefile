# SPDX-License-Identifier: Apache-2.0
# make demo       a whole region on this machine, real traffic, one table  (root)
# make test       what CI runs; its aim are 15 minutes on 2 cores             (root for the XDP and namespace tests)
# make test-long  the rest: long differentials and models, SIGKILL by the hundred, mutants, an hour of fuzzing, the package; hours
# make bench      the headlines in at most 15 minutes: table and JSON        make bench-full  every bench with all sizes; hours
# make peers      the same beside Open vSwitch and Linux
# make build      everything in release mode     make deb    a Debian package   make deb-test  installs, upgrades and runs it (root)
# make fuzz       a longer fuzz run              make fuzz-coverage  the same targets, guided by coverage    make generate  writes what is generated from the code
# make audit     dependencies (unused ones, licences, advisories), and what needs more than the stable compiler: models of table memory
#                under loom, its heap under Miri (nightly)
# Tests that cannot run here (no root, tool, kernel feature or third-party data) are counted and named at the end of
# `make test`; with TUNNY_CI=1 they fail.
.PHONY: audit all build demo test test-all test-long bench bench-full peers deb deb-test deps lint sources fuzz fuzz-coverage generate
TUNNY := $(or $(CARGO_TARGET_DIR),target)/release/tunny
LAB := $(TUNNY)-lab
DEBUG := $(or $(CARGO_TARGET_DIR),target)/debug
# As in a login shell after rustup: cargo may not be in root's PATH under sudo.
export PATH := $(PATH):$(HOME)/.cargo/bin

all: build

deps:
	@scripts/deps.sh

build: deps
	cargo build --release --workspace --bins

demo: build
	@$(LAB) lab demo $(if $(KEEP),--keep)

# Tests want to be compiled soon rather than run fast: no ThinLTO inside each crate, no line tables, no files for the next build, each crate
# in few pieces, and clippy in the same pass as the compiler.
test: export CARGO_PROFILE_DEV_LTO := off
test: export CARGO_PROFILE_DEV_DEBUG := 0
test: export CARGO_INCREMENTAL := 0
test: export CARGO_PROFILE_DEV_CODEGEN_UNITS := 4
test: export RUSTC_WORKSPACE_WRAPPER := $(CURDIR)/scripts/lint-and-compile
test: export CLIPPY_ARGS := -Dwarnings
# How long it took, beside what it may take on 2 cores.
test:
	@start=$$(date +%s); $(MAKE) --no-print-directory test-all; status=$$?; \
	echo "make test: $$(($$(date +%s) - start)) s (at most 900 on 2 quiet cores)"; exit $$status

# One build serves all: building a package by itself would compile its dependencies again with other features.
test-all: deps sources
	cargo build --workspace --bins --tests --examples
	@$(call counted,cargo xtask test)
	$(DEBUG)/fuzz --seconds $(or $(FUZZ_SECONDS),20)

# Runs tests, then says which could not run, also after a failure.
SKIPS := $(abspath $(or $(CARGO_TARGET_DIR),target))/skips
counted = rm -f $(SKIPS); TUNNY_SKIPS=$(SKIPS) $(1); status=$$?; cargo xtask skips $(SKIPS) || exit 1; exit $$status

# Names of long tests begin with long_; others run longer by a variable. A hundred test programs are linked sooner without LTO, which makes
# them some percent slower: what they ask of speed holds all the more for what is shipped.
test-long: export CARGO_PROFILE_RELEASE_LTO := off
test-long: export CARGO_PROFILE_RELEASE_DEBUG := 0
test-long: export TUNNY_PACKETS := $(or $(TUNNY_PACKETS),3000000)
test-long: export TUNNY_NAT_PACKETS := $(or $(TUNNY_NAT_PACKETS),400000)
test-long: export TUNNY_STATES_PACKETS := $(or $(TUNNY_STATES_PACKETS),50000)
test-long: export TUNNY_FILTER_PACKETS := $(or $(TUNNY_FILTER_PACKETS),2000000)
test-long: export TUNNY_EVENTS := $(or $(TUNNY_EVENTS),10000000)
test-long: export TUNNY_KILLS := $(or $(TUNNY_KILLS),200)
test-long: export TUNNY_HANDSHAKES := $(or $(TUNNY_HANDSHAKES),1500)
test-long: deps
	@$(call counted,cargo xtask test --release)
	@$(call counted,cargo xtask test --release -- --ignored long_)
	cargo xtask mutate --sample $(or $(MUTANTS),100)
	$(MAKE) fuzz FUZZ_SECONDS=$(or $(FUZZ_SECONDS),3600)
	$(MAKE) deb-test

lint: sources
	@cargo clippy --quiet --workspace --all-targets -- -D warnings

# What a look at the sources finds: `make test` lints as it compiles.
sources:
	@cargo xtask abi --check
	@cargo xtask reference --check
	@cargo xtask style
	@cargo fmt --all --check

generate:
	cargo xtask abi
	cargo xtask reference
	cargo run --quiet --bin tunny -- cli-reference --write docs/reference
	cargo run --quiet --bin tunny-lab -- cli-reference --write docs/reference

bench: build
	$(LAB) bench headlines --save docs/results

bench-full: build
	$(LAB) bench all --save docs/results

peers: build
	@scripts/deps.sh peers
	$(LAB) bench peers --save docs/results

fuzz-coverage: deps
	scripts/fuzz-coverage --seconds $(or $(FUZZ_SECONDS),3600)

fuzz: deps
	cargo run --release --package fuzz -- --seconds $(or $(FUZZ_SECONDS),600)

# DEB=debug packs the debug binaries that `make test` has built, quickly: for CI.
ifeq ($(DEB),debug)
deb: deps
	TUNNY_BINARY=$(DEBUG)/tunny TUNNY_DEB_COMPRESS=1 packaging/build-deb.sh
else
deb: build
	TUNNY_BINARY=$(TUNNY) packaging/build-deb.sh
endif

# Checks the package with lintian, installs it in a throwaway copy of this system, runs the units' command lines as systemd
# would, and upgrades while the node forwards: about a minute (root).
deb-test: deb
	@scripts/deps.sh deb
	packaging/test-deb.sh

# cargo-machete and cargo-deny are installed beside the build, once. The advisories are a snapshot of the RustSec database: its date is
# printed, and where it cannot be fetched that part is skipped. The models run every order of stores and loads that the memory model
# allows; Miri checks each pointer. `rustup component add miri --toolchain nightly` gives the latter.
AUDIT := $(abspath $(or $(CARGO_TARGET_DIR),target)/audit)
audit: export PATH := $(AUDIT)/bin:$(PATH)
audit:
	@for tool in machete deny; do command -v cargo-$$tool >/dev/null || cargo install --locked --root $(AUDIT) cargo-$$tool || exit 1; done
	cargo machete
	cargo deny --workspace check licenses bans sources
	@if cargo deny fetch db; then \
		date=$$(git -C "$$(ls -dt $${CARGO_HOME:-$$HOME/.cargo}/advisory-dbs/*/ | head -1)" log -1 --format=%cs); \
		echo "advisories as of $$date" && cargo deny --workspace check advisories; \
	else echo "SKIPPED: advisories: the RustSec database cannot be fetched"; fi
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=$(or $(CARGO_TARGET_DIR),target)/loom cargo test -p memory --lib
	@if rustup run nightly cargo miri --version; then \
		MIRIFLAGS=-Zmiri-disable-isolation CARGO_TARGET_DIR=$(or $(CARGO_TARGET_DIR),target)/miri rustup run nightly cargo miri test -p memory --lib; \
	else echo "SKIPPED: Miri: no nightly toolchain with miri is installed"; fi
