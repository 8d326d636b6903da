#!/bin/sh
# Makes the virtual environment and builds octavo into it. Usage: setup.sh PYTHON VENV
# Each missing prerequisite ends in one line that names it and the remedy.
set -eu
python=$1
venv=$2

fail() {
    printf 'octavo setup: %s\n' "$1" >&2
    exit 1
}

command -v "$python" >/dev/null 2>&1 ||
    fail "$python not found. Install Python 3.11 or newer (Debian: apt-get install python3), or run make PYTHON=/path/to/python3."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$python" --version) is too old. Octavo needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"
command -v "${CXX:-g++}" >/dev/null 2>&1 ||
    fail "no C++ compiler (${CXX:-g++}). Install one (Debian: apt-get install g++), or set CXX."
"$python" -c 'import os, sysconfig, sys; sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))' ||
    fail "Python.h is missing. Install the Python headers (Debian: apt-get install python3-dev)."
if [ ! -x "$venv/bin/python" ]; then
    existed=$([ -e "$venv" ] && echo yes || echo no)
    if ! said=$("$python" -m venv "$venv" 2>&1); then
        # What a failed attempt leaves behind looks like an environment, but has no pip.
        [ "$existed" = yes ] || rm -rf "$venv"
        "$python" -c 'import venv, ensurepip' >/dev/null 2>&1 ||
            fail "$python cannot make virtual environments. Install its venv module (Debian: apt-get install python3-venv)."
        fail "cannot create a virtual environment in $venv: $(printf '%s\n' "$said" | tail -n 1)"
    fi
fi
if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    "$venv/bin/python" -m ensurepip >/dev/null 2>&1 ||
        fail "the virtual environment in $venv has no pip. Install the venv module (Debian: apt-get install python3-venv), then remove $venv and try again."
fi

echo "octavo setup: installing build tools and dependencies into $venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    "scikit-build-core>=1.0" "nanobind>=2.9" cmake ninja ||
    fail "pip could not install the build tools. Check the network or pip's index settings (pip config list)."
echo "octavo setup: building the native extension and installing octavo"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-build-isolation \
    --editable ".[test]" ||
    fail "building or installing octavo failed; the compiler's or pip's message is above."
echo "octavo setup: done. Next: make serve, or . $venv/bin/activate && octavo run smollm2"
