#!/usr/bin/env bash
# Plays worlds of the deterministic simulator: SEEDS of them (6,000 without it), of all kinds.
#
# First those that once broke something (tests/seeds.txt), then a fixed part that begins at each kind's first seed, then twice as many from a
# number that the commit decides (tests/run-number.sh), so that commits explore worlds that those before them have not played. A seed that fails is
# printed with the command that plays it again.
set -euo pipefail
cd "$(dirname "$0")/.."

seeds=${SEEDS:-6000}
holdfast=${HOLDFAST_BIN:?set HOLDFAST_BIN to the binary}
[ "$seeds" -ge 30 ] || { echo "worlds: SEEDS is $seeds; fewer than 30 would leave kinds out" >&2; exit 2; }
number=$(tests/run-number.sh)
# Each kind: its first seed, how many sets of a thousand new seeds it has, and its
# thirtieths: fixed ones, and twice as many new ones.
kinds=('0 890 2' '1000000 8890 1' '10000000 8900 1' '20000000 8900 1' '30000000 8900 1' '40000000 8900 1' '50000000 8900 1' '60000000 8900 1' '70000000 8900 1')

failed=0
play() {
  printf 'worlds: %s seeds from %s\n' "$2" "$1"
  "$holdfast" sim --from "$1" --seeds "$2" || failed=1
}

mapfile -t known < <(sed 's/#.*//' tests/seeds.txt | awk 'NF { print $1 }')
printf 'worlds: %s that once broke something (tests/seeds.txt)\n' "${#known[@]}"
# shellcheck disable=SC2016
printf '%s\n' "${known[@]}" | xargs -P "$(nproc)" -I{} bash -c '
  "$0" sim --seed "$1" > /dev/null || { printf "seed %s fails: holdfast sim --seed %s --trace\n" "$1" "$1"; exit 1; }' "$holdfast" {} || failed=1

for kind in "${kinds[@]}"; do
  read -r first sets parts <<< "$kind"
  count=$((seeds * parts / 30))
  if [ -z "$number" ]; then
    play "$first" $((3 * count))
    continue
  fi
  play "$first" "$count"
  play $((first + 100000 + number % sets * 1000)) $((2 * count))
done
if [ -n "$number" ]; then
  printf 'worlds: the new seeds are those of run %s\n' "$number"
else
  printf 'worlds: there is no git here: fixed seeds only\n'
fi
exit "$failed"
