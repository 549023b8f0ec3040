#!/usr/bin/env bash
# Runs every target of fuzz/ (or those named) under libFuzzer for FUZZ_SECONDS each, as many at a time as there are cores.
#
# The pinned toolchain builds them: what a coverage-guided fuzzer needs beyond it is a flag that only RUSTC_BOOTSTRAP
# opens. The address sanitizer stays off: the code under test has no unsafe block. A run starts from fuzz/corpus/TARGET
# and from what earlier runs found, in target/fuzz/corpus/TARGET.
#
# What makes a target fail is in target/fuzz/artifacts/TARGET. Run it without libFuzzer, in the build of all tests:
#   HOLDFAST_FUZZ_INPUT=target/fuzz/artifacts/TARGET/crash-… cargo test --locked -p holdfast-fuzz --test corpora
# and, once it is mended, keep it: `cp` it into fuzz/corpus/TARGET under a name that says what it was.
#
# KEEP=1 copies what reached new code into fuzz/corpus/TARGET after the run: to be committed when targets or the code
# that they run have changed much, not on every occasion.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${FUZZ_SECONDS:-60}
keep=${KEEP:-}
out=$PWD/target/fuzz
export RUSTC_BOOTSTRAP=1

targets=("$@")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(ls fuzz/corpus)
# The versions of the product; cargo adds what libFuzzer needs beyond them.
cp Cargo.lock fuzz/libfuzzer/Cargo.lock
cargo fuzz build --fuzz-dir fuzz/libfuzzer --sanitizer none --target-dir "$out"
binary=$(find "$out" -path '*/release/target' -type f -perm -u+x)

run() {
  local target=$1 found=$out/corpus/$1 artifacts=$out/artifacts/$1/ kept=fuzz/corpus/$1 log=$out/$1.log
  local options=(-timeout=10 -rss_limit_mb=2048 -max_len=4096)
  export HOLDFAST_FUZZ_TARGET=$target
  mkdir -p "$found" "$artifacts"
  if ! "$binary" "${options[@]}" "-artifact_prefix=$artifacts" "-max_total_time=$seconds" "$found" "$kept" > "$log" 2>&1; then
    printf 'fuzz: %s FAILED; input in %s\n' "$target" "$artifacts" >&2
    tail -n 40 "$log" >&2
    return 1
  fi
  printf 'fuzz: %-12s %s; %s\n' "$target" "$(grep -o 'Done .*' "$log" | tail -1)" "$(grep -o 'cov: [0-9]*' "$log" | tail -1)"
  [ -z "$keep" ] || "$binary" "${options[@]}" -set_cover_merge=1 -use_counters=0 "$kept" "$found" >> "$log" 2>&1
}
export -f run
export out seconds keep binary
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I{} bash -c 'set -euo pipefail; run "$1"' _ {}
