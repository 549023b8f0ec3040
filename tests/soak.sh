#!/usr/bin/env bash
# What is too long for every change: every test of the gate's kinds in its full form (tests/README.md says which).
#
#   tests/soak.sh [k/N]      the k-th of N parts (1/1 without it)
#
# A job that has passed is not run again on the same sources at the same size, so an interrupted soak goes on where it was; without git nothing is
# known of the sources, and all run. Logs are in target/soak/. SIZE=small plays few worlds, seconds of libFuzzer, one share of conformance, and the end-to-end tests in
# the gate's form: enough to see that every kind of job works.
set -uo pipefail
cd "$(dirname "$0")/.."

part=${1:-1/1}
[[ "$part" =~ ^([1-9][0-9]*)/([1-9][0-9]*)$ ]] && ((BASH_REMATCH[1] <= BASH_REMATCH[2])) || {
  echo "soak: PART is k/N with k from 1 to N, not '$part'" >&2
  exit 2
}
k=${BASH_REMATCH[1]} n=${BASH_REMATCH[2]}
[ "$(id -u)" -eq 0 ] || { echo "soak: only root can make the networks of the end-to-end tests" >&2; exit 77; }
case ${SIZE:-full} in
  full) seeds=${SEEDS:-100000} chunk=10000 fuzz=${FUZZ_SECONDS:-600} shares='0 1 2' e2e='HOLDFAST_SOAK=1 ' ;;
  small) seeds=${SEEDS:-400} chunk=200 fuzz=${FUZZ_SECONDS:-5} shares=0 e2e='' ;;
  *) echo "soak: SIZE is full or small, not '$SIZE'" >&2; exit 2 ;;
esac
number=$(tests/run-number.sh)
# The commit, and what is changed since.
sources=$({ git rev-parse HEAD && git diff HEAD; } 2> /dev/null | sha256sum | cut -c1-12)
git rev-parse --quiet --verify HEAD > /dev/null 2>&1 || sources=unknown-$$
done_at=target/soak/$sources-${SIZE:-full}-$seeds-$fuzz
mkdir -p "$done_at"
export HOLDFAST_BIN=$PWD/target/debug/holdfast
test=("${CARGO:-cargo}" test --locked --workspace)

# A job is a line: its name, and what it runs.
jobs_of() {
  local share first target
  for share in $shares; do
    echo "conformance-$share HOLDFAST_SHARE=$share/3 ${test[*]} --test conformance"
  done
  for first in 0 1000000 10000000 20000000 30000000 40000000 50000000 60000000 70000000; do
    # Behind the gate's fixed seeds; the first kind has a million seeds in all, of which a soak plays a tenth.
    local from=$((first + 100000 + ${number:-0} % 8 * 100000)) at
    for ((at = 0; at < seeds; at += chunk)); do
      echo "worlds-$((from + at)) $HOLDFAST_BIN sim --from $((from + at)) --seeds $((seeds - at < chunk ? seeds - at : chunk))"
    done
  done
  while read -r -d ' ' target; do
    echo "fuzz-${target//,/-} FUZZ_SECONDS=$fuzz tests/fuzz.sh ${target//,/ }"
  done < <(for target in fuzz/corpus/*/; do basename "$target"; done | paste -sd, | sed -E 's/([^,]+,[^,]+),/\1 /g; s/$/ /')
  echo "suricata crates/functions/tests/captures/soak.sh"
  for target in tests/e2e/*.rs; do
    target=$(basename "$target" .rs)
    [ "$target" = main ] || echo "e2e-$target $e2e${test[*]} --test e2e -- $target:: --skip hosts_$target::"
  done
}

"${test[@]}" --no-run || exit 1
passed=0 failed=0 skipped=0 at=0 table=''
while read -r name command; do
  at=$((at + 1))
  (((at - k) % n == 0)) || continue
  if [ -e "$done_at/$name" ]; then
    skipped=$((skipped + 1))
    continue
  fi
  printf '\n── soak %s\n' "$name"
  since=$SECONDS
  bash -c "exec env $command" < /dev/null 2>&1 | tee "$done_at/$name.log"
  status=${PIPESTATUS[0]}
  # A test program that ran no test has shown nothing.
  if [ "$status" -eq 0 ] && { ! grep -q 'test result:' "$done_at/$name.log" || grep -qE 'test result: ok\. [1-9]' "$done_at/$name.log"; }; then
    touch "$done_at/$name"
    passed=$((passed + 1)) result=passed
  else
    failed=$((failed + 1)) result=FAILED
  fi
  table+=$(printf '%-28s %s %6d s' "$name" "$result" "$((SECONDS - since))")$'\n'
done < <(jobs_of)

printf '\n%s' "$table"
printf 'soak %s, part %s; %d jobs had passed before\n' "${SIZE:-full}" "$part" "$skipped"
printf '\n%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" -eq 0 ] && [ $((passed + skipped)) -gt 0 ]
