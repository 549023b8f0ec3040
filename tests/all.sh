#!/usr/bin/env bash
# Runs the steps named (make targets), one after the other, whatever became of those before, and counts.
#
# Steps joined by `+` run together: the first ones, in turn, on what the last one leaves of the processors. End-to-end tests mostly wait.
#
# A step counts as many tests as its test runner says; one without a runner (a linter, the simulator) counts as
# one. A step that ends badly although none of its tests failed (it did not compile, say) counts as one failure.
# Logs stay in target/test/. At the end: the slowest tests of all, what the first failures said, the seconds of
# each step, and how long a loop takes that does the same everywhere, so that a slow machine is told from a slow
# gate.
set -uo pipefail
cd "$(dirname "$0")/.."
export LC_NUMERIC=C

logs=target/test
mkdir -p "$logs"
[ -t 1 ] && export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-always}

# What is too much for every run is divided among runs: each commit takes its share.
number=$(tests/run-number.sh)
if [ -n "$number" ]; then
  export HOLDFAST_RUN=$number
  export HOLDFAST_SHARE=${HOLDFAST_SHARE:-$((number % 3))/3} HOLDFAST_FUZZ_SEED=${HOLDFAST_FUZZ_SEED:-$number}
  printf 'run %s: share %s of conformance; `HOLDFAST_RUN=%s make test` repeats it\n' "$number" "$HOLDFAST_SHARE" "$number"
fi

# A step's result, and its seconds, are kept beside its log.
play() {
  local since=$SECONDS
  "${@:2}" "${MAKE:-make}" --no-print-directory "$1" 2>&1 | tee "$logs/$1.log"
  echo "${PIPESTATUS[0]} $((SECONDS - since))" > "$logs/$1.result"
}

passed=0 failed=0 skipped=0 table='' begin=$SECONDS broken=() files=()
count() {
  local step=$1 status=1 seconds=0 p f s
  read -r status seconds < "$logs/$step.result"
  # The closing lines of cargo test: "test result: ok. 3 passed; 0 failed; 1 ignored; …".
  read -r p f s < <(sed -n 's/.*test result: [^ ]* \([0-9]*\) passed; \([0-9]*\) failed; \([0-9]*\) ignored;.*/\1 \2 \3/p' "$logs/$step.log" |
    awk '{ p += $1; f += $2; s += $3 } END { print p + 0, f + 0, s + 0 }')
  [ "$status" -ne 0 ] && [ "$f" -eq 0 ] && f=1 && broken+=("$logs/$step.log")
  [ "$status" -eq 0 ] && [ "$((p + f + s))" -eq 0 ] && p=1
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s)) files+=("$logs/$step.log")
  table+=$(printf '%-11s %5d passed %4d failed %4d skipped %6d s' "$step" "$p" "$f" "$s" "$seconds")$'\n'
}

# A step beside another one ignores the keyboard's interrupt, and ends with this script.
trap 'trap - TERM; kill 0; exit 130' INT TERM
for argument in "$@"; do
  IFS=+ read -ra steps <<< "$argument"
  last=${steps[-1]} beside=("${steps[@]::${#steps[@]}-1}")
  for step in "${steps[@]}"; do rm -f "$logs/$step.log" "$logs/$step.result"; done
  for step in "${beside[@]}"; do play "$step" chrt --idle 0; done > /dev/null &
  printf '\n── %s%s\n' "$last" "${beside[*]:+, and beside it ${beside[*]}}"
  play "$last"
  wait
  for step in "${beside[@]}"; do
    printf '\n── %s\n' "$step"
    cat "$logs/$step.log"
  done
  for step in "${steps[@]}"; do count "$step"; done
done
whole=$((SECONDS - begin))

# The same work for every core at once: a million turns of the shell's loop.
calibrate() {
  local core TIMEFORMAT=%R
  time { for core in $(seq "$(nproc)"); do (for ((i = 0; i < 1000000; i++)); do :; done) & done; wait; }
}

# Tests by their own seconds, and as a whole those programs whose runner tells no test's time.
slowest() {
  sed -nE 's/\x1b\[[0-9;]*m//g
    s/.*seconds +([0-9.]+)  (.*)/test \1 \2/p
    s/^ +(Running|Doc-tests) (unittests )?([^ ]+).*[/(]([a-z_]+)-[0-9a-f]+\)$/program \4 \3/p
    s/.*finished in ([0-9.]+)s$/end \1/p' "$@" |
    awk '$1 == "program" { name = $2 " (" $3 ")"; told = 0 } $1 == "test" { print $2, $3; told = 1 } $1 == "end" && name != "" && !told { print $2, name; name = "" }' |
    sort -rn | head -10 | while read -r seconds name; do printf '%8.1f  %s\n' "$seconds" "$name"; done
}

# The first words of the first tests that failed, as both runners print them: `---- NAME ----` or `---- NAME stdout ----`, and what it said.
failures() {
  sed -E 's/\x1b\[[0-9;]*m//g' "$@" |
    awk '/^---- .* ----$/ { tests++; lines = 0; said = 1 } /^(failures:|test result:)/ { said = 0 }
      said && tests <= 4 && NF > 0 && lines++ < 8 { print substr($0, 1, 400) }'
}

printf '\nslowest, seconds\n'
slowest "${files[@]}"
if [ "$failed" -gt 0 ]; then
  printf '\nfailures, their first lines (all of it: %s)\n' "$logs"
  failures "${files[@]}"
  for log in "${broken[@]}"; do tail -n 8 "$log" | cut -c 1-400; done
fi
printf '\n%s' "$table"
printf 'in all %d s on %d cores; calibration loop %s s (1.06 s where the gate was measured: tests/README.md)\n' "$whole" "$(nproc)" "$(calibrate 2>&1)"
printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
