#!/usr/bin/env bash
# Install the service into a virtual environment of its own: scripts/install_service.sh PREFIX
# The Dockerfile and CI run this same file. PYTHON names the interpreter, 3.11 or later.
set -euo pipefail
cd "$(dirname "$0")/.."

prefix=${1:?usage: scripts/install_service.sh PREFIX}
"${PYTHON:-python3}" -m venv "$prefix"
"$prefix/bin/python" -m pip --disable-pip-version-check --no-cache-dir install --quiet \
    --constraint .ci/constraints.txt '.[server,telemetry]'
"$prefix/bin/shardwright" version
