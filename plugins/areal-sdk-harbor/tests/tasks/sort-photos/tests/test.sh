#!/bin/bash
cd /photos || exit 1
expected="2024-05/2024-05-17-beach.jpg 2024-05/2024-05-30-beach.jpg 2024-06/2024-06-01-beach.jpg 2025-05/2025-05-02-beach.jpg notes.txt"
found=$(find . -type f -printf '%P\n' | sort | tr '\n' ' ')
if [ "$found" = "$expected " ] && [ "$(cat 2024-06/2024-06-01-beach.jpg)" = "2024-06-01" ]; then
  echo 1.0 > /logs/verifier/reward.txt
else
  echo 0.0 > /logs/verifier/reward.txt
fi
