# SPDX-License-Identifier: Apache-2.0
# make demo   a whole region on this machine, real traffic, one table      (root)
# make test   every test                                                  (root for the XDP and namespace tests)
# make bench  benches: table and JSON        make peers  the same beside Open vSwitch and Linux
# make build  everything in release mode     make deb    a Debian package   make deb-test  installs and runs it (root)
# make fuzz   a longer fuzz run              make generate  writes what is generated from the code
.PHONY: all build demo test bench peers deb deb-test deps lint fuzz generate
TUNNY := $(or $(CARGO_TARGET_DIR),target)/release/tunny
DEBUG := $(or $(CARGO_TARGET_DIR),target)/debug
# As in a login shell after rustup: cargo may not be in root's PATH under sudo.
export PATH := $(PATH):$(HOME)/.cargo/bin

all: build

deps:
	@scripts/deps.sh

build: deps
	cargo build --release --workspace --bins

demo: build
	@$(TUNNY) lab demo $(if $(KEEP),--keep)

# Tests want to be compiled soon rather than run fast: without ThinLTO inside each crate compiling takes a third less CPU time
# (config 19 s instead of 28), and tests run about 15 % longer (tables 4.1 s instead of 3.5).
test: export CARGO_PROFILE_DEV_LTO := off
# One build serves all: building a package by itself would compile its dependencies again with other features.
test: deps lint
	cargo build --workspace --bins --tests --examples
	cargo test --workspace --lib --bins --tests --no-fail-fast
	$(DEBUG)/fuzz --seconds $(or $(FUZZ_SECONDS),20)

lint:
	@cargo xtask abi --check
	@cargo xtask reference --check
	@cargo xtask style

generate:
	cargo xtask abi
	cargo xtask reference
	cargo run --quiet --package cli -- cli-reference --write docs/reference

bench: build
	$(TUNNY) bench all --save docs/results

peers: build
	@scripts/deps.sh peers
	$(TUNNY) bench peers --save docs/results

fuzz: deps
	cargo run --release --package fuzz -- --seconds $(or $(FUZZ_SECONDS),600)

deb: build
	packaging/build-deb.sh

# Installs the package in a throwaway copy of this system and runs the unit's command line as systemd would.
deb-test: deb
	@scripts/deps.sh deb
	packaging/test-deb.sh
