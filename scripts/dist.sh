#!/bin/sh
# Builds both distributions into dist/ and proves the wheels: installed where the source tree is
# not, the command runs, its examples pass its own check, and the client imports by itself.
#
#   scripts/dist.sh PYTHON
set -eu

python=$(realpath -s "${1:?usage: scripts/dist.sh PYTHON}")
root=$(pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

rm -rf dist
"$python" -m hatchling build --directory "$root/dist"
(cd clients/python && "$python" -m hatchling build --directory "$root/dist")

install() { # environment, wheels
    environment=$1
    shift
    "$python" -m venv "$environment"
    "$environment/bin/python" -m pip install --quiet --disable-pip-version-check \
        --constraint "$root/requirements/constraints.txt" "$@"
}

install "$scratch/client" dist/agent_routing_client-*.whl
(cd "$scratch" && client/bin/python -c 'import agent_routing; print("client imports by itself")')

install "$scratch/service" dist/*.whl
cd "$scratch"
service/bin/agent-routing --version
for example in service/lib/python*/site-packages/routing_service/examples/*.yaml; do
    service/bin/agent-routing check "$example"
done
printf 'both wheels work:\n'
ls -l "$root/dist"
