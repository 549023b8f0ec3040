#!/usr/bin/env bash
# Prints the alerts that Suricata gives on captures: `CAPTURE PROTOCOL END END SID`, sorted, each once. The two
# ends of a flow stand in the order of their texts: for a stream, Suricata names one or the other first.
#
#   suricata.sh [DIRECTORY]        captures; the ones beside this script without it
#
# Exit 77: Suricata is not installed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
captures=$(cd "${1:-$here}" && pwd)
command -v suricata > /dev/null || { echo "suricata.sh: Suricata is not installed" >&2; exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
for capture in "$captures"/*.pcap; do
  rm -f eve.json
  suricata -c "$here/suricata.yaml" -S "$here/captures.rules" -k none -l . -r "$capture" > said 2>&1 ||
    { cat said >&2; exit 1; }
  # A rule that Suricata refuses is only an error in its log.
  ! grep -E '^(E|Error)' said >&2 || exit 1
  python3 - "$(basename "$capture" .pcap)" << 'END'
import ipaddress, json, sys
with open('eve.json') as lines:
    for line in lines:
        it = json.loads(line)
        if it['event_type'] != 'alert': continue
        proto = it['proto'].lower().replace('ipv6-', '')
        ends = [ipaddress.ip_address(it[end]) for end in ('src_ip', 'dest_ip')]
        ends = [f"[{end}]" if end.version == 6 else str(end) for end in ends]
        if proto in ('tcp', 'udp'):
            ends = [f"{end}:{it[port]}" for end, port in zip(ends, ('src_port', 'dest_port'))]
        print(sys.argv[1], proto, *sorted(ends), it['alert']['signature_id'])
END
done | LC_ALL=C sort -u
