#!/usr/bin/env bash
# Build a plugin of this tree as a wheel and test it in an environment of its own:
#   PYTHON=.venv/bin/python LIGHT=ENVIRONMENT/bin/python scripts/plugin_wheel.sh plugins/NAME
# LIGHT has the core's wheel and its packages. They are reached by a path; what the plugin pins comes before them.
# From the time TESTS_UNTIL on (seconds since 1970) the wheel is installed and loaded, and its tests do not run.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
plugin=$1
name=$(basename "$plugin")
scratch=$(mktemp -d)
mkdir "$scratch/needed"
trap 'rm -rf "$scratch"' EXIT

packages() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

wheel() { # of the directory $1, into the directory $2
  "$PYTHON" -m build --wheel --no-isolation --outdir "$2" "$1" >"$scratch/log" || { cat "$scratch/log"; exit 1; }
}
wheel "$plugin" "$scratch"
# The packages of this tree that the plugin needs: they may not be published yet.
for needed in $(grep -o '"areal-sdk-[a-z0-9-]*' "$plugin/pyproject.toml" | tr -d '"'); do
  [ "$needed" = "$name" ] || wheel "plugins/$needed" "$scratch/needed"
done
"$PYTHON" -m venv --without-pip "$scratch/env" # LIGHT has pip; to install it anew takes longer than the plugin
own=$scratch/env/bin/python
packages "$LIGHT" >"$(packages "$own")/light.pth"
timeout 300 "$own" -m pip install --quiet --constraint constraints.txt \
  --find-links "$scratch/needed" "$(ls "$scratch"/*.whl)[test]"
(cd "$scratch" && "$own" - "$name" <<'PYTHON'
import sys
from importlib import import_module
from importlib.metadata import distribution

import_module(sys.argv[1].replace("-", "_"))
print(f"{sys.argv[1]}: {len([one.load() for one in distribution(sys.argv[1]).entry_points])} entry points loaded")
PYTHON
)
if [ "$(date +%s)" -ge "${TESTS_UNTIL:-9999999999}" ]; then
  printf '!! NOT TESTED: the tests of %s against its wheel: CI is late; they ran from the tree\n' "$name"
  exit 0
fi
cp -r "$plugin" "$scratch/plugin"
rm -r "$scratch/plugin/${name//-/_}" # the wheel, not this tree, must be what is imported
cd "$scratch/plugin"
timeout 600 "$own" -m pytest -q -rs -m "not slow and not gpu" tests ||
  timeout 600 "$own" "$root/scripts/run_again.py" # as the other tests of CI: a flaky one is named at its end
