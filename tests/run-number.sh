#!/usr/bin/env bash
# Prints a number that every commit has another one of: what a run plays besides its fixed part begins there. Without git, or when nothing is
# committed, it prints nothing, and only the fixed parts run. HOLDFAST_RUN sets it: `HOLDFAST_RUN=N make test` plays what the run with N played.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ -n "${HOLDFAST_RUN:-}" ]; then
  printf '%d\n' "$HOLDFAST_RUN"
elif commit=$(git rev-parse --verify --quiet HEAD 2> /dev/null); then
  printf '%d\n' "0x${commit:0:7}"
elif [ -e .git ]; then
  echo "tests: git says nothing of this checkout (\`git status\` says why): only the fixed parts run" >&2
fi
