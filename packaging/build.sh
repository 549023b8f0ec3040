#!/usr/bin/env bash
# Builds the daemon and the laboratory, target/release/holdfast and holdfast-lab, and says how far it is: a line that moves on a terminal, one every half minute elsewhere.
# What cargo says besides (warnings, errors) passes through. Silent when nothing is to be built.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo=${CARGO:-cargo}
crates=$("$cargo" tree --locked -p holdfast -p holdfast-lab -e normal,build --prefix none --format '{p}' | sed 's/ (\*)$//' | sort -u | wc -l)
width=0
[ -t 2 ] && width=1

# Cargo names each crate once when its turn comes.
follow() {
  local line number=0 is_done=0 said=-30 begin=$SECONDS
  while IFS= read -r line; do
    case $line in
      *' Compiling '*) ;;
      *' Finished '*) is_done=1; continue ;;
      *' Blocking '* | *' Downloading '* | *' Downloaded '* | *' Updating '*) continue ;;
      *) printf '%s\n' "$line"; continue ;;
    esac
    [ "$number" -gt 0 ] || printf 'build: %d crates, some 4 to 6 minutes on two cores the first time\n' "$crates"
    number=$((number + 1))
    local text="build: crate $number of $crates after $((SECONDS - begin)) s"
    if [ "$width" -gt 0 ]; then
      printf '\r%s ' "$text"
    elif [ $((SECONDS - said)) -ge 30 ]; then
      said=$SECONDS
      printf '%s\n' "$text"
    fi
  done
  [ "$is_done" -eq 0 ] || [ "$number" -eq 0 ] || printf '%sbuild: done after %d s                    \n' "$([ "$width" -eq 0 ] || printf '\r')" "$((SECONDS - begin))"
}

CARGO_TERM_COLOR=never "$cargo" build --locked --release -p holdfast -p holdfast-lab 2> >(follow >&2) && status=0 || status=$?
wait
exit "$status"
