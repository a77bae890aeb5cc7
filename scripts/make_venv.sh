#!/usr/bin/env bash
# Makes .venv beside this folder, or brings it up to date: make_venv.sh [EXTRA]
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
"$python" - <<'PY'
import sys
if not (3, 11) <= sys.version_info[:2] < (3, 14):
    sys.exit(f"Python 3.11, 3.12 or 3.13 is needed; {sys.executable} is {sys.version.split()[0]}. "
             "Name another one: PYTHON=python3.12 bash scripts/...")
PY
[ -x .venv/bin/python ] || "$python" -m venv .venv
echo "Installing into .venv ..."
.venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[${1:-viz}]"
