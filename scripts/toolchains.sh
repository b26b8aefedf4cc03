#!/bin/sh
# Installs the programs that tests run, where they are missing: for the clients of other languages Go,
# a JDK with Maven, Node.js with npm, Chromium; for the files in deploy/ Prometheus, HAProxy, Helm and
# what builds an image; for the workflows actionlint. Says what it found.
#
#   scripts/toolchains.sh [go|java|node|chromium|prometheus|haproxy|image|helm|actionlint]...      by default all
#
# Works on a bare Debian 12 or newer: everything comes from the distribution's own packages, and a Go
# that those are too old for from the module proxy, which go itself asks and whose checksums it
# verifies. Needs root, or sudo without a password, only where a package is missing. tests/toolchains.py
# says what is new enough. Safe to repeat.
set -eu
cd "$(dirname "$0")/.."

python=${PYTHON:-.venv/bin/python}
# clients/go asks for Go 1.24; Debian 12 has 1.19.
go_version=1.25.8
own_go=build/toolchains/go
# The TypeScript client asks for Node.js 20; Debian 12 has 18.19.
node_version=22.23.3
own_node=build/toolchains/node
helm_version=v3.18.6
actionlint_version=v1.7.7
own_programs=build/toolchains/bin

say() { printf '%s\n' "$*"; }
fail() {
    printf 'toolchains: %s\n' "$*" >&2
    exit 1
}
found() { "$python" -m tests.toolchains "$1"; }

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
        sudo -n "$@"
    else
        fail "installing packages needs root; as root: $*"
    fi
}

listed=
install_packages() {
    command -v apt-get >/dev/null ||
        fail "no apt-get here: install $* (or what this system calls them) by hand"
    if [ -z "$listed" ]; then
        as_root apt-get update -qq
        listed=yes
    fi
    say "installing $*"
    DEBIAN_FRONTEND=noninteractive as_root apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# A toolchain is a module like any other, golang.org/toolchain, which an older Go can download too
# (from 1.21 on Go would do so itself). A module's files are neither writable nor executable.
install_go() {
    command -v go >/dev/null || install_packages golang-go ca-certificates
    found go >/dev/null && return
    module="golang.org/toolchain@v0.0.1-go$go_version.$(go env GOOS)-$(go env GOARCH)"
    say "$(go version) is too old: getting $module"
    folder=$(go mod download -json "$module" | sed -n 's/^[[:space:]]*"Dir": "\(.*\)",\{0,1\}$/\1/p')
    [ -n "$folder" ] || fail "go could not download $module"
    rm -rf "$own_go"
    mkdir -p "$own_go"
    cp -R "$folder/." "$own_go"
    chmod -R u+w "$own_go"
    chmod +x "$own_go"/bin/* "$own_go"/pkg/tool/*/*
}

# Node.js is a package of npm's registry like any other, so an older npm can install it.
install_node() {
    # Node.js of other packagers brings npm along, and shuts out Debian's package of it.
    if ! command -v node >/dev/null; then install_packages nodejs npm
    elif ! command -v npm >/dev/null; then install_packages npm; fi
    found node >/dev/null && return
    case $(uname -m) in x86_64) machine=x64 ;; aarch64 | arm64) machine=arm64 ;; *) machine=$(uname -m) ;; esac
    say "Node.js $(node --version) is too old: installing $node_version"
    rm -rf "$own_node"
    mkdir -p "$own_node"
    npm install --silent --no-save --no-audit --no-fund --prefix "$own_node" "node-linux-$machine@$node_version"
    ln -s "node_modules/node-linux-$machine/bin" "$own_node/bin"
}

# Go compiles it, Helm in two to four minutes, and keeps what it has compiled for the next checkout.
install_with_go() {
    found go >/dev/null || install_go
    mkdir -p "$own_programs"
    say "building $1"
    PATH="$PWD/$own_go/bin:$PATH:/usr/local/go/bin" GOTOOLCHAIN=local GOFLAGS='' GOBIN="$PWD/$own_programs" \
        go install "$1"
}

install_missing() {
    case $1 in
    go) install_go ;;
    java) install_packages default-jdk-headless maven ;;
    node) install_node ;;
    chromium) install_packages chromium ;;
    prometheus) install_packages prometheus ;;
    haproxy) install_packages haproxy ;;
    # buildah recommends crun, which refuses hosts with both versions of cgroups.
    image) install_packages buildah mmdebstrap runc ;;
    helm) install_with_go "helm.sh/helm/v3/cmd/helm@$helm_version" ;;
    actionlint) install_with_go "github.com/rhysd/actionlint/cmd/actionlint@$actionlint_version" ;;
    *) fail "\"$1\" is not a toolchain: go, java, node, chromium, prometheus, haproxy, image, helm or actionlint" ;;
    esac
}

[ $# -gt 0 ] || set -- go java node chromium prometheus haproxy image helm actionlint
for name in "$@"; do
    found "$name" && continue
    install_missing "$name"
    found "$name" || fail "$name is still missing, or too old"
done
