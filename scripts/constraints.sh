#!/bin/sh
# Writes scripts/requirements/constraints.txt: the newest versions that our bounds allow, all of them, as
# one environment that can be installed again. Run it to take in new releases, then the tests.
set -eu

target=scripts/requirements/constraints.txt
python=${1:-.venv/bin/python}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

"$python" -m venv "$scratch/venv"
pip="$scratch/venv/bin/python -m pip --quiet --disable-pip-version-check"
$pip install --upgrade pip
# virtualenv stands in where Python has no venv module; redis needs async-timeout on Python before
# 3.11.3, such as the image's.
$pip install --editable clients/python --editable topics --editable ".[topics]" --group dev virtualenv async-timeout

{
    printf '# The exact versions that the tests ran with. Made by: make constraints\n'
    printf '# (Python %s, %s)\n' \
        "$("$python" -c 'import platform; print(platform.python_version())')" \
        "$("$python" -c 'import platform; print(platform.system(), platform.machine())')"
    $pip freeze --all --exclude-editable --exclude setuptools --exclude wheel
} >"$scratch/constraints.txt"
mv "$scratch/constraints.txt" "$target"
printf 'wrote %s\n' "$target"
