#!/usr/bin/env bash
# Installs what building, testing and showing Holdfast need on Debian 12. Quick, and silent, when nothing is missing.
#
#   packaging/setup.sh            everything
#   packaging/setup.sh packages   only Debian's packages and the check for Rust: enough for the demo
set -euo pipefail
cd "$(dirname "$0")/.."

# To build, and for the fuzzers' C++ half; for DPDK ports, with all of DPDK's drivers; for control messages by libfabric; to make networks, and the programs that talk through
# them.
packages=(
  build-essential ca-certificates git
  libdpdk-dev pkg-config
  libfabric-dev libfabric1
  iproute2 ethtool nftables util-linux
  nginx-light curl iperf3 wrk etcd-server bird2 frr openssl redis-server bind9-dnsutils dnsmasq-base traceroute iputils-ping tcpdump
)
# Cargo's own tools, each at the version that the tests were written with.
tools=(cargo-deny@0.20.2 cargo-fuzz@0.13.2)
tools_root=${HOLDFAST_TOOLS:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/holdfast/tools}

say() { printf 'setup: %s\n' "$*" >&2; }

# Nothing that a package brings may start as a service, now or at the next boot: the tests start their own, in their own networks.
without_services() {
  local policy=/usr/sbin/policy-rc.d made_policy='' status=0
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' > "$policy"
    chmod +x "$policy"
    made_policy=$policy
  fi
  "$@" || status=$?
  [ -z "$made_policy" ] || rm -f "$made_policy"
  return "$status"
}

install_packages() {
  local installed missing=() package
  installed=$(dpkg-query -W -f='${db:Status-Abbrev} ${Package}\n' "${packages[@]}" 2> /dev/null | sed -n 's/^ii  *//p' || true)
  for package in "${packages[@]}"; do
    grep -qxF "$package" <<< "$installed" || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" -ne 0 ]; then
    say "these packages are missing and only root can install them: ${missing[*]}"
    exit 77
  fi
  say "installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  without_services apt-get install -y -qq --no-install-recommends "${missing[@]}"
  if [[ " ${missing[*]} " == *" nginx-light "* ]]; then
    deb-systemd-helper disable nginx.service > /dev/null 2>&1 || true
    update-rc.d nginx disable > /dev/null 2>&1 || true
  fi
  if [[ " ${missing[*]} " == *" etcd-server "* ]]; then
    deb-systemd-helper disable etcd.service > /dev/null 2>&1 || true
    update-rc.d etcd disable > /dev/null 2>&1 || true
  fi
  if [[ " ${missing[*]} " == *" redis-server "* ]]; then
    deb-systemd-helper disable redis-server.service > /dev/null 2>&1 || true
    update-rc.d redis-server disable > /dev/null 2>&1 || true
  fi
  local daemon
  for daemon in bird frr; do
    if [[ " ${missing[*]} " == *" $daemon"* ]]; then
      deb-systemd-helper disable "$daemon.service" > /dev/null 2>&1 || true
      update-rc.d "$daemon" disable > /dev/null 2>&1 || true
    fi
  done
}

check_rust() {
  local channel
  channel=$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
  if ! command -v cargo > /dev/null; then
    say "Rust is missing. Install rustup and version $channel (https://rustup.rs: \`rustup toolchain install $channel -c rustfmt -c clippy\`),"
    say "then try again. Debian 12's own rustc is too old."
    exit 69
  fi
  local version
  if ! version=$(cargo --version 2>&1); then
    say "cargo does not start: $version"
    say "The toolchain that rust-toolchain.toml names may be missing: \`rustup toolchain install $channel -c rustfmt -c clippy\`"
    exit 69
  fi
  version=$(cut -d' ' -f2 <<< "$version")
  if [ "$(printf '%s\n' "$channel" "$version" | sort -V | head -1)" != "$channel" ]; then
    say "cargo $version is older than $channel: \`rustup toolchain install $channel -c rustfmt -c clippy\`"
    exit 69
  fi
}

install_tools() {
  local tool name version component
  for component in fmt clippy; do
    if ! cargo "$component" --version > /dev/null 2>&1; then
      say "\`cargo $component\` is missing: \`rustup component add rustfmt clippy\`"
      exit 69
    fi
  done
  PATH=$tools_root/bin:$PATH
  for tool in "${tools[@]}"; do
    name=${tool%@*} version=${tool#*@}
    if [ "$("$name" --version 2> /dev/null)" != "$name $version" ]; then
      say "building $name $version into $tools_root (a few minutes, once)"
      # Optimised they would take longer to build than they save.
      cargo install --quiet --debug --locked --root "$tools_root" "$tool"
    fi
  done
}

# The crates' sources: also what other systems would need, because whoever reads licences wants to see all of it.
fetch_crates() {
  cargo fetch --quiet --locked
}

case ${1:-all} in
  all) install_packages; check_rust; install_tools; fetch_crates ;;
  packages) install_packages; check_rust ;;
  *) say "usage: packaging/setup.sh [packages]"; exit 2 ;;
esac
