#!/usr/bin/env bash
# Creates or updates .venv with the package and its extras: make_venv.sh EXTRAS
# TensorFlow, which all of them have, needs Python 3.11 to 3.13.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
"$python" - <<'PY'
import sys
if not (3, 11) <= sys.version_info[:2] < (3, 14):
    sys.exit("Python must be 3.11, 3.12 or 3.13. "
             f"Received: {sys.executable}, {sys.version.split()[0]}. Choose another: PYTHON=python3.12 bash scripts/...")
PY
[ -x .venv/bin/python ] || "$python" -m venv .venv
echo "Installing into .venv ..."
# Without compiling: 15,000 files, of which few are imported.
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --editable ".[$1]"
