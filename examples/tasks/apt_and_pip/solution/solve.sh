#!/bin/bash
set -e
cd /app
jq '[.[] | select(.status == "paid")] | group_by(.customer)
    | map({customer: .[0].customer, orders: length, total: (map(.quantity * .price_cents) | add)})
    | sort_by(-.total, .customer)' orders.json > /tmp/rows.json
python3 - <<'PYTHON' > report.md
import json
from tabulate import tabulate

rows = [(r["customer"], r["orders"], f"{r['total'] / 100:.2f}") for r in json.load(open("/tmp/rows.json"))]
print(tabulate(rows, headers=("customer", "orders", "total"), tablefmt="github", disable_numparse=True))
PYTHON
