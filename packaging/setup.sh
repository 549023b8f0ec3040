#!/usr/bin/env bash
# Installs what building, testing and showing Holdfast need on Debian 12. Quick when nothing is missing.
set -euo pipefail

packages=(
  build-essential pkg-config git
  iproute2 ethtool nginx-light curl iperf3 wrk bind9-dnsutils dnsmasq-base traceroute iputils-ping util-linux tcpdump
)

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q '^install ok installed$' || missing+=("$package")
done

if [ ${#missing[@]} -gt 0 ]; then
  if [ "$(id -u)" -ne 0 ]; then
    echo "setup: these packages are missing and only root can install them: ${missing[*]}" >&2
    exit 77
  fi
  export DEBIAN_FRONTEND=noninteractive
  # Nothing that a package brings is to start as a service of this machine.
  policy=/usr/sbin/policy-rc.d
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' > "$policy"
    chmod +x "$policy"
    trap 'rm -f "$policy"' EXIT
  fi
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${missing[@]}"
fi

if ! command -v cargo > /dev/null; then
  echo "setup: cargo is missing: install Rust 1.95 or later (https://rustup.rs) and try again" >&2
  exit 69
fi
