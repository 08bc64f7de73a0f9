#!/bin/bash
# A run whose trainer ranks torchrun starts: examples/cluster/torchrun.sh agent.py RANKS_PER_MACHINE MACHINE...
#
# The main process, the engine and rollout nodes are on this machine. ssh reaches each MACHINE without a password; there, the
# environment with areal-sdk[train], the model and this directory are at the same paths. ADDRESS is this machine's address
# for the others.
set -euo pipefail

agent=$1 each=$2
shift 2
address=${ADDRESS:-$(hostname --ip-address | awk '{print $1}')}
output=$(mktemp)

areal-sdk train "$agent" --launcher torchrun --set trainer.ranks=$((each * $#)) \
  --set cluster.listen_host="$address" > >(tee "$output") 2>&1 &
run=$!
trap 'kill $run 2> /dev/null || true' EXIT

# The line that the run prints has its address and its secret token.
until grep -q 'trainer ranks with: ' "$output"; do
  kill -0 $run
  sleep 1
done
line=$(sed -n 's/.*trainer ranks with: //p' "$output" | head -n 1)
line=${line/--nproc-per-node N/--nproc-per-node $each --nnodes $# --master-addr $1 --master-port 29500}

number=0
for machine in "$@"; do
  ssh "$machine" "cd $(printf %q "$PWD") && ${line/torchrun/torchrun --node-rank $number}" &
  number=$((number + 1))
done
wait $run
