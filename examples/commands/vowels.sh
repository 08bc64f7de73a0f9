#!/bin/sh
# An agent as a shell script: asks with curl, and posts the share of vowels in the answer as its reward.
#
#   areal-sdk train --command "sh vowels.sh" --tasks words.jsonl
set -e
question=$(grep -o '"question":"[^"]*"' "$AREAL_SDK_TASK" | cut -d'"' -f4)
call() { # path, JSON
  curl -sSf "$OPENAI_BASE_URL$1" -H "Authorization: Bearer $OPENAI_API_KEY" \
    -H "Content-Type: application/json" -d "$2"
}
said=$(call /chat/completions \
  "{\"model\": \"$OPENAI_MODEL\", \"messages\": [{\"role\": \"user\", \"content\": \"$question\"}]}")
text=$(printf '%s' "$said" | grep -o '"content":"[^"]*"' | head -n 1 | cut -d'"' -f4)
vowels=$(printf '%s' "$text" | tr -cd 'aeiou' | wc -c)
length=$(printf '%s' "$text" | wc -c)
call /reward "{\"reward\": $(awk "BEGIN {print $vowels / ($length ? $length : 1)}")}"
