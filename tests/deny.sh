#!/usr/bin/env bash
# Licences, duplicates and sources of the dependencies; their advisories too where the database is on this machine.
set -euo pipefail
cd "$(dirname "$0")/.."

# Where cargo-deny keeps the database by default, and where older versions did.
databases=("${CARGO_HOME:-${HOME:-/root}/.cargo}"/advisory-db*/*)
checks=(licenses bans sources)
if [ -e "${databases[0]}" ]; then
  checks+=(advisories)
else
  echo "deny: advisories are NOT checked: their database is not on this machine (\`cargo deny fetch db\` brings it)"
fi
cargo deny --locked --offline --workspace check --hide-inclusion-graph "${checks[@]}"
