#!/usr/bin/env bash
# Compares the function `ips` with Suricata: the alerts that are checked in are those of the installed Suricata,
# and on captures that are recorded anew both give the same alerts.
set -euo pipefail
cd "$(dirname "$0")"

diff -u suricata.txt <(./suricata.sh) || { echo "soak: suricata.txt is not what Suricata gives here" >&2; exit 1; }
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
./record.sh "$fresh"
./suricata.sh "$fresh" > "$fresh/suricata.txt"
cd ../../../..
HOLDFAST_CAPTURES=$fresh "${CARGO:-cargo}" test --locked -p holdfast-functions --test scenarios -- \
  captures::what_suricata_finds_is_found
