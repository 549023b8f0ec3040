#!/usr/bin/env bash
# Compares the function `ips` with Suricata, and `dpi` with ndpiReader: what is checked in is what the installed
# programs say, and on captures that are recorded anew both say the same.
set -euo pipefail
cd "$(dirname "$0")"

diff -u suricata.txt <(./suricata.sh) || { echo "soak: suricata.txt is not what Suricata gives here" >&2; exit 1; }
diff -u ndpi.txt <(./ndpi.sh .) || { echo "soak: ndpi.txt is not what ndpiReader gives here" >&2; exit 1; }
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
./record.sh "$fresh"
./suricata.sh "$fresh" > "$fresh/suricata.txt"
./ndpi.sh "$fresh" > "$fresh/ndpi.txt"
cd ../../../..
HOLDFAST_CAPTURES=$fresh "${CARGO:-cargo}" test --locked -p holdfast-functions --test scenarios -- \
  captures::what_suricata_finds_is_found dpi_captures::the_protocols_are_those_of_ndpireader
