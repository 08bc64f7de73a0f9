#!/bin/bash
python3 - <<'EOT'
import csv, json, os

with open("/data/prices.csv") as table:
    rows = [
        {"name": row["name"], "price": float(row["price"])}
        for row in csv.DictReader(table, delimiter=os.environ["SEPARATOR"])
    ]
with open("/data/prices.json", "w") as file:
    json.dump(rows, file)
EOT
