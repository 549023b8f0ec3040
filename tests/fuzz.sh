#!/usr/bin/env bash
# Runs every fuzzer of fuzz/ (or those named) for FUZZ_SECONDS each, as many at a time as there are cores.
#
# The pinned toolchain builds them: what a coverage-guided fuzzer needs beyond it is a flag that only RUSTC_BOOTSTRAP opens. The
# address sanitizer stays off: the code under test has no unsafe block. Corpora grow in target/fuzz/corpus; fuzz/seeds/TARGET, where
# there is one, is where they start. What makes a fuzzer fail is in target/fuzz/artifacts.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${FUZZ_SECONDS:-60}
out=$PWD/target/fuzz
export RUSTC_BOOTSTRAP=1
options=(--sanitizer none --target-dir "$out")

mapfile -t targets < <([ $# -gt 0 ] && printf '%s\n' "$@" || cargo fuzz list)
[ ${#targets[@]} -gt 0 ] || { echo "fuzz: there is no fuzzer" >&2; exit 1; }
# Without a name it builds all at once.
for target in "${@-}"; do
  cargo fuzz build "${options[@]}" ${target:+"$target"}
done

run() {
  local target=$1 corpus=$out/corpus/$1 artifacts=$out/artifacts/$1/ log=$out/$1.log binary
  mkdir -p "$corpus" "$artifacts"
  binary=$(find "$out" -path "*/release/$target" -type f -perm -u+x | head -1)
  local seeds=()
  [ -d "fuzz/seeds/$target" ] && seeds=("fuzz/seeds/$target")
  if ! "$binary" "-artifact_prefix=$artifacts" "-max_total_time=$seconds" -timeout=10 -rss_limit_mb=2048 \
    "$corpus" "${seeds[@]}" > "$log" 2>&1; then
    printf 'fuzz: %s FAILED; input in %s\n' "$target" "$artifacts" >&2
    tail -n 40 "$log" >&2
    return 1
  fi
  printf 'fuzz: %-24s %s\n' "$target" "$(grep -o 'Done .*' "$log" | tail -1)"
}
export -f run
export out seconds
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I{} bash -c 'set -euo pipefail; run "$1"' _ {}
