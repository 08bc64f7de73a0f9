#!/bin/bash
cd /photos || exit 1
for file in ????-??-??-*.jpg; do
  mkdir -p "${file:0:7}"
  mv "$file" "${file:0:7}/"
done
