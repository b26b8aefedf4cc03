#!/bin/sh
# Runs the tests of the agent frameworks' adapters, each in an environment of its own, at the exact
# versions of scripts/requirements/integrations/FRAMEWORK.txt. An environment is made once, and again when
# its versions or the client's pyproject.toml have changed.
#
#   scripts/integrations.sh VENV [FRAMEWORK...]     VENV: the project's own environment
#   scripts/integrations.sh VENV --newest FRAMEWORK  pin the newest versions, to be tested
#
# What pip has downloaded stays in its cache, so that a second environment is quick.
set -eu

venv=${1:?usage: scripts/integrations.sh VENV [--newest] [FRAMEWORK...]}
shift
pinned=scripts/requirements/integrations
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

# Installed with the framework: what runs the tests, and what an adapter's example needs.
beside() {
    case $1 in
    langgraph) echo pytest pytest-asyncio pytest-timeout langgraph-swarm langgraph-supervisor langgraph-checkpoint-sqlite ;;
    a2a) echo pytest pytest-asyncio pytest-timeout "a2a-sdk[http-server]" uvicorn ;;
    *) echo pytest pytest-asyncio pytest-timeout ;;
    esac
}

# Debian splits the venv module off; virtualenv comes with the development tools.
make_environment() {
    "$venv/bin/python" -m virtualenv --quiet --clear --no-pip --no-setuptools --no-wheel "$1"
}

install() {
    into=$1
    shift
    "$venv/bin/python" -m pip --python "$into/bin/python" install --quiet "$@"
}

if [ "${1:-}" = --newest ]; then
    framework=${2:?name one of: $(ls $pinned)}
    fresh=.venv-integrations/newest-$framework
    make_environment "$fresh"
    # shellcheck disable=SC2046 # a list of names
    install "$fresh" --editable "clients/python[$framework]" $(beside "$framework")
    {
        echo "# What the $framework adapter is tested with: make test-integrations. To take the newest:"
        echo "# scripts/integrations.sh .venv --newest $framework"
        "$venv/bin/python" -m pip --python "$fresh/bin/python" freeze --exclude-editable
    } >"$pinned/$framework.txt"
    rm -rf "$fresh"
    exit
fi

[ $# -gt 0 ] || set -- openai-agents langgraph google-adk pydantic-ai agent-framework a2a
for framework; do
    environment=.venv-integrations/$framework
    made=$environment/.installed
    if ! [ "$made" -nt "$pinned/$framework.txt" ] || ! [ "$made" -nt clients/python/pyproject.toml ]; then
        echo "making $environment"
        make_environment "$environment"
        install "$environment" --requirement "$pinned/$framework.txt" \
            --editable "clients/python[$framework]"
        touch "$made"
    fi
done

# Two at a time, for two cores: a run of one mostly waits for processes that import its framework.
# Its output comes at its end. The frameworks' own deprecation warnings are theirs to mend.
# conftest.py of all tests needs the service's tools, which are not there.
export INTEGRATIONS_SERVER="$PWD/$venv/bin/agent-routing"
# shellcheck disable=SC2016 # expanded by the inner shell
printf '%s\n' "$@" | xargs -P 2 -n 1 sh -c '
    said=$(".venv-integrations/$0/bin/python" -m pytest \
        --override-ini addopts= --import-mode importlib --confcutdir tests/integrations \
        -p no:cacheprovider -W default -q --durations 3 \
        "tests/integrations/test_$(echo "$0" | tr - _).py" 2>&1)
    code=$?
    printf "testing %s\n%s\n" "$0" "$said"
    exit $code'
