# All chores, the same here and in CI. `just` lists them.

host := `rustc -vV | sed -n 's/^host: //p'`

default:
    @just --list

# everything CI checks, in CI's order
check: fmt-check lint lint-peers docs deny house test test-features test-peers examples

# the README's test command
test:
    cargo test --workspace

fmt:
    cargo fmt --all

fmt-check:
    cargo fmt --all --check

lint:
    cargo clippy --workspace --all-targets -- -D warnings

# lints with the peers that need no C++
lint-peers:
    cargo clippy -p bifold-lab -p bifold-cli --all-targets --features fjall,redb,lmdb -- -D warnings

# tests of the lab with these peers
test-peers:
    cargo test -p bifold-lab --features fjall,redb,lmdb

docs:
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items

# licences, duplicates and advisories of dependencies
deny:
    cargo run -q -p xtask -- deny

# limits of the code: lines, columns, the seam, names of placements
house:
    cargo run -q -p xtask -- house

# tests of the features that are off by default
test-features:
    cargo run -q -p xtask -- test -p bifold --features metrics,tracing --lib metrics
    cargo clippy -p bifold --all-targets --features metrics,tracing -- -D warnings

# packages of the crates that are published, built from what is in them; what is not on crates.io yet comes from here
package:
    cargo package -p bifold-contract -p bifold-io -p bifold-format -p bifold-index -p bifold-values -p bifold

# breaking changes of the public interface since the last tag (cargo install cargo-semver-checks)
semver:
    tag=$(git describe --tags --abbrev=0 2>/dev/null) || { \
        echo "no tag yet: nothing was released that a change could break"; exit 0; }; \
    cargo semver-checks -p bifold --all-features --baseline-rev "$tag"

# the oldest Rust that the manifests promise: installs that toolchain if it is missing
msrv:
    cargo +$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml) check -p bifold --all-features

# the short programs in crates/bifold/examples, which check their own output
examples:
    for example in basics transfers options own_placement; do cargo run -q -p bifold --example $example || exit 1; done

# proofs at CI's counts, in release mode, with their figures
prove:
    cargo run -q -p xtask -- prove

# real file systems filled to the last byte; skipped with a message where images cannot be mounted
disks:
    cargo run -q -p xtask -- disks

# planted bugs, each of which a proof must catch
planted:
    cargo run -q -p xtask -- planted

# proofs for some minutes; seeds and totals are appended to reliability/ledger.jsonl
soak minutes="30":
    cargo build --release -q -p bifold-cli
    cargo run --release -q -p bifold-sim -- soak --minutes {{minutes}}

# address sanitizer, including leaks, on the crates with `unsafe` (nightly)
asan:
    RUSTFLAGS="-Zsanitizer=address" cargo +nightly test \
        --target {{host}} --target-dir target/asan -p bifold-index -p bifold-io --lib

# Needs the component rust-src: in a standard library built without the sanitizer, the ordering by locks and channels is
# not seen. Two tests are left out because their child processes get bus errors and do not end under it.
# thread sanitizer on the same crates (nightly)
tsan:
    RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer" \
    TSAN_OPTIONS="suppressions=$PWD/reliability/tsan.supp" \
        cargo +nightly test -Zbuild-std --target {{host}} --target-dir target/tsan -p bifold-index -p bifold-io --lib \
        -- --skip a_store_that_faults --skip appends_truncated_by_another_program

# Miri on the `unsafe` code that it can run: the memtable, the counting allocator (nightly, components miri and rust-src)
miri:
    MIRIFLAGS="-Zmiri-disable-isolation" PROPTEST_CASES=4 \
        cargo +nightly miri test --target-dir target/miri -p bifold-index --lib memtable
    MIRIFLAGS="-Zmiri-disable-isolation" \
        cargo +nightly miri test --target-dir target/miri -p bifold-sim --lib allocations

# what CI runs of it
miri-small:
    cargo run -q -p xtask -- miri

# mutants of a crate's files, survivors in target/mutants (cargo install cargo-mutants); see reliability/mutants.md
mutants crate="bifold-format" *files="":
    cargo mutants -p {{crate}} {{files}} -o target/mutants --timeout 120 --build-timeout 900

# test coverage of the crates (cargo install cargo-llvm-cov; LLVM_COV and LLVM_PROFDATA of Debian's llvm-19)
coverage:
    LLVM_COV=llvm-cov-19 LLVM_PROFDATA=llvm-profdata-19 \
        cargo llvm-cov test -p bifold-format -p bifold-io -p bifold-index -p bifold-values -p bifold \
        -p bifold-conformance --show-missing-lines

# import the repository into a database, kill the process, check the database
demo:
    cargo run --release -- demo

# write the fixtures of a new format version, never over old ones: see fixtures/README.md
fixtures version keyspaces="default hashkv wisckey" format="tsv":
    test ! -e fixtures/{{version}}
    cargo test -p bifold --test all -- --ignored --nocapture write_the_missing_databases
    for keyspace in {{keyspaces}}; do \
        cargo run -q -- export fixtures/{{version}}/database --keyspace $keyspace --format {{format}} \
            > fixtures/{{version}}/$keyspace.{{format}} || exit 1; \
    done
