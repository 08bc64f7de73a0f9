#!/usr/bin/env bash
# From a template to a trained model, as the author of a plugin and then its user: `init plugin`, a wheel of it,
# an environment with nothing but the two wheels, found, checked, trained.
#
#   bash scripts/plugin_path.sh dist/areal_sdk-0.1.0-py3-none-any.whl
set -euo pipefail
core=$(realpath "$1")
constraints=$(realpath "$(dirname "$0")/../constraints.txt")
python=$(realpath --no-symlinks "$(command -v "${PYTHON:-python3}")")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"

step() { printf '%4s s  %s\n' "$SECONDS" "$1"; }

step "an environment with the core's wheel"
"$python" -m venv env
env/bin/python -m pip install --quiet --constraint "$constraints" "$core[train]"

step "init plugin, and a wheel of it"
env/bin/areal-sdk init plugin areal-sdk-sample >/dev/null
env/bin/python -m pip wheel --quiet --no-deps --wheel-dir dist ./areal-sdk-sample
rm -r areal-sdk-sample # the wheel alone must do

step "the plugin is installed, found and checked"
env/bin/python -m pip install --quiet --no-deps dist/areal_sdk_sample-*.whl
env/bin/areal-sdk plugins check areal-sdk-sample

step "the model learns from it"
env/bin/areal-sdk train --env areal_sdk_sample --tasks areal_sdk_sample --eval-tasks areal_sdk_sample \
  --model tiny --set run.dir=runs --set run.steps=4 --set rollout.batch=16 --set eval.tasks=20 --json >summary.json
env/bin/python - <<'PYTHON'
import json

summary = json.load(open("summary.json"))
assert summary["steps"] == 4 and summary["ended"] == "steps", summary
assert summary["ledger"]["trained"] >= 64, summary["ledger"]
PYTHON

step "done"
