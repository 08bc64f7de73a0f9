#!/bin/bash
# An untouched file passes some of the tests, so only all of them count.
if python3 /tests/check_median.py; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
