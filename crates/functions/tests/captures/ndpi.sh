#!/usr/bin/env bash
# Prints the protocols that ndpiReader gives to the flows of all captures of a directory: capture, protocol, both ends,
# nDPI's protocol and category. It guesses nothing by ports and addresses (-d).
#
#   ndpi.sh DIRECTORY
#
# Exit 77: ndpiReader is missing.
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: ndpi.sh DIRECTORY" >&2; exit 2; }
command -v ndpiReader > /dev/null || { echo "ndpi: ndpiReader is missing (libndpi-bin)" >&2; exit 77; }

for capture in "$1"/*.pcap; do
  # Each flow is a line: number, protocol, end, arrow, end, [proto: 91.126/TLS.Google], …, [cat: Web/5] if it has one. Messages
  # to groups belong to no flow of a box.
  ndpiReader -d -v 2 -f 'not ip6 multicast and not ip multicast' -i "$capture" 2> /dev/null |
    sed -nE 's/^\t[0-9]+\t(TCP|UDP|ICMPV6|ICMP) ([^ ]+) <?-> ([^ ]+) \[proto: [0-9.]+\/([^]]+)\](.*)$/\1 \2 \3 \4 \5/p' |
    while read -r protocol one other name rest; do
      case $protocol in
        ICMP*) protocol=icmp one=${one%:*} other=${other%:*} ;;
        *) protocol=${protocol,,} ;;
      esac
      category=Unspecified
      [[ $rest =~ \[cat:\ ([^]/]+)/ ]] && category=${BASH_REMATCH[1]}
      read -r one other <<< "$(printf '%s\n' "$one" "$other" | LC_ALL=C sort | paste -s -d ' ')"
      echo "$(basename "$capture" .pcap) $protocol $one $other $name $category"
    done
done | LC_ALL=C sort -u
