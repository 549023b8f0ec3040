#!/usr/bin/env bash
# Runs the steps named (make targets), one after the other, whatever became of those before, and counts.
#
# A step counts as many tests as its test runner says; one without a runner (a linter, the simulator, a fuzzer) counts as one. A step that
# ends badly although none of its tests failed (it did not compile, say) counts as one failure. Logs stay in target/test/.
set -uo pipefail
cd "$(dirname "$0")/.."

logs=target/test
mkdir -p "$logs"
[ -t 1 ] && export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-always}

passed=0 failed=0 skipped=0 table=''
for step in "$@"; do
  printf '\n── %s\n' "$step"
  SECONDS=0
  "${MAKE:-make}" --no-print-directory "$step" 2>&1 | tee "$logs/$step.log"
  status=${PIPESTATUS[0]}
  # The closing lines of cargo test: "test result: ok. 3 passed; 0 failed; 1 ignored; …".
  read -r p f s < <(sed -n 's/.*test result: [^ ]* \([0-9]*\) passed; \([0-9]*\) failed; \([0-9]*\) ignored;.*/\1 \2 \3/p' "$logs/$step.log" |
    awk '{ p += $1; f += $2; s += $3 } END { print p + 0, f + 0, s + 0 }')
  [ "$status" -ne 0 ] && [ "$f" -eq 0 ] && f=1
  [ "$status" -eq 0 ] && [ "$((p + f + s))" -eq 0 ] && p=1
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
  table+=$(printf '%-6s %5d passed %4d failed %4d skipped %6d s' "$step" "$p" "$f" "$s" "$SECONDS")$'\n'
done

printf '\n%s' "$table"
printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
