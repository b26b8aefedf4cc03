#!/bin/sh
# Makes the project's environment: a virtual environment with all distributions, editable, and
# the development tools, at the exact versions of scripts/requirements/constraints.txt.
#
#   scripts/install.sh VENV [PYTHON]
#
# Needs Python 3.11 or newer and pip; where the venv module is missing (Debian splits it off) it
# uses virtualenv, in a folder of its own. Changes nothing outside VENV. Safe to repeat.
set -eu

venv=${1:?usage: scripts/install.sh VENV [PYTHON]}
wanted=${2:-}
constraints=scripts/requirements/constraints.txt

say() { printf '%s\n' "$*"; }
fail() {
    printf 'install: %s\n' "$*" >&2
    exit 1
}

# Quiet where it is harmless: a container's root user installs into the environment alone.
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}
has_venv() {
    "$1" -c 'import ensurepip, venv' 2>/dev/null
}
has_pip() {
    "$1" -m pip --version >/dev/null 2>&1
}

# Python 3.11 is what the constraints were made with, so it comes first.
find_python() {
    for name in python3.11 python3 python3.12 python3.13 python3.14 python; do
        if is_new_enough "$name" && { has_venv "$name" || has_pip "$name"; }; then
            say "$name"
            return
        fi
    done
    fail "no Python 3.11 or newer with pip or the venv module found. Install one (Debian: python3 with" \
        "python3-venv or python3-pip), or name it: make install PYTHON=/path/to/python3.11"
}

if [ -n "$wanted" ]; then
    is_new_enough "$wanted" ||
        fail "PYTHON=$wanted is no Python 3.11 or newer. Name another, or leave PYTHON out."
    has_venv "$wanted" || has_pip "$wanted" ||
        fail "PYTHON=$wanted has neither pip nor the venv module. Install one of them, or name another."
    python=$wanted
else
    python=$(find_python)
fi

make_venv() {
    if has_venv "$python"; then
        "$python" -m venv --clear "$venv"
        return
    fi
    say "no venv module in $python: using virtualenv"
    bootstrap=$(mktemp -d)
    trap 'rm -rf "$bootstrap"' EXIT
    # --target keeps clear of the system's own packages, which may be marked as externally managed.
    "$python" -m pip install --quiet --constraint "$constraints" --target "$bootstrap" virtualenv
    PYTHONPATH=$bootstrap "$python" -m virtualenv --quiet --clear "$venv"
}

# An environment without its interpreter, or without pip, is made again.
if ! { is_new_enough "$venv/bin/python" && has_pip "$venv/bin/python"; }; then
    say "making $venv with $("$python" --version)"
    make_venv
fi

say "installing dependencies and tools (a minute or so the first time)"
pip="$venv/bin/python -m pip"
# First pip itself: older ones know no dependency groups.
$pip install --quiet --constraint "$constraints" pip
# The client first: the service needs exactly this version of it, which no index may have yet.
$pip install --quiet --constraint "$constraints" --build-constraint "$constraints" \
    --editable clients/python --editable topics --editable ".[topics]" --group dev
say "installed into $venv: $("$venv/bin/python" -c 'import routing_service as s; print("agent-routing", s.__version__)')"
