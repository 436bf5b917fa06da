"""Join tables of comma-separated values and report sums: prices, states, quoted commas, corrections."""

from __future__ import annotations

from collections import Counter

from muster_suites.frame import Draw, Family, Instance, in_python
from muster_suites.judging import judged_by


def _table_report(draw: Draw) -> Instance:
    level = draw.difficulty
    products, regions = draw.words(draw.at(2, 3, 4, 6, 8)), draw.words(draw.at(2, 2, 3, 4, 5))
    prices = {product: draw.number(3, 400) for product in products}
    customers = {str(100 + i): draw.choice(regions) for i in range(draw.at(3, 5, 8, 15, 25))}
    orders = _orders(draw, products, list(customers))
    totals: Counter[str] = Counter()
    for _, customer, product, quantity, state in {order[0]: order for order in orders}.values():
        key = product if level == 1 else customers.get(customer, "unknown")
        if state == "paid":
            totals[key] += int(quantity) * (prices[product] if level >= 3 else 1)
    tables = {"orders": [["order", "customer", "product", "quantity", "state"], *orders]}
    if level >= 2:
        names = [f'"{draw.pair(", ")}"' if level >= 4 else draw.pair() for _ in customers]
        rows = zip(customers, names, customers.values(), strict=True)
        tables["customers"] = [["customer", "name", "region"], *map(list, rows)]
    if level >= 3:
        tables["prices"] = [["product", "price"], *([product, str(prices[product])] for product in products)]
    what = "product" if level == 1 else "region"
    ranking = sorted(totals.items(), key=lambda item: (-item[1], item[0]))
    report = [f"{what},total", *(f"{key},{total}" for key, total in ranking)]
    return Instance(
        instruction=_instruction(level, what),
        files={f"files/{name}.csv": "".join(f"{','.join(row)}\n" for row in rows) for name, rows in tables.items()},
        tests=judged_by({"check": "lines", "path": "/app/report.csv", "lines": report}),
        solution=in_python(f"WHAT, PRICED = {what!r}, {level >= 3}\n{_SOLVE_TABLE}"),
        max_turns=draw.at(4, 6, 8, 12, 16),
    )


def _orders(draw: Draw, products: list[str], customers: list[str]) -> list[list[str]]:
    orders: list[list[str]] = []
    for index in range(draw.at(6, 12, 25, 60, 120)):
        customer = draw.choice([*customers, "999"] if draw.difficulty == 5 else customers)
        state = draw.choice(("paid", "paid", "paid", "cancelled")) if draw.difficulty >= 4 else "paid"
        orders.append([str(5000 + index), customer, draw.choice(products), str(draw.number(1, 9)), state])
    corrected = draw.sample(orders, 12) if draw.difficulty == 5 else []
    return orders + [[*order[:3], str(draw.number(10, 19)), order[4]] for order in corrected]


def _instruction(level: int, what: str) -> str:
    wishes = ["/app/orders.csv has a header and the columns order, customer, product, quantity, state."]
    if level >= 2:
        wishes.append("/app/customers.csv (customer, name, region) says which region a customer belongs to.")
    if level >= 3:
        wishes.append("/app/prices.csv (product, price) has the price of one piece.")
    value = "the sum of quantity times price" if level >= 3 else "the sum of the quantities"
    wishes.append(
        f"Write /app/report.csv: a header `{what},total`, then one line for each {what} that has orders that count, "
        f"with {value}, ordered by total, the largest first, and by {what} where totals are equal."
    )
    if level >= 4:
        wishes.append("Only orders in state paid count; a name may contain a comma inside double quotes.")
    if level == 5:
        wishes.append(
            "An order that occurs twice was corrected: only its last line counts. Customers that are not in "
            "customers.csv belong to the region unknown."
        )
    return "\n".join(wishes)


_SOLVE_TABLE = """
import csv, os
from collections import Counter

def rows(name):
    return list(csv.DictReader(open(name))) if os.path.exists(name) else []

region = {row["customer"]: row["region"] for row in rows("customers.csv")}
price = {row["product"]: int(row["price"]) for row in rows("prices.csv")}
totals = Counter()
for row in {row["order"]: row for row in rows("orders.csv")}.values():
    if row["state"] == "paid":
        key = row["product"] if WHAT == "product" else region.get(row["customer"], "unknown")
        totals[key] += int(row["quantity"]) * (price[row["product"]] if PRICED else 1)
with open("report.csv", "w") as report:
    print(f"{WHAT},total", file=report)
    for key, total in sorted(totals.items(), key=lambda item: (-item[1], item[0])):
        print(f"{key},{total}", file=report)
"""


FAMILY = Family(
    name="table-report",
    suite="terminal",
    make=_table_report,
    levels=(
        "sums over one table",
        "two tables to join",
        "three tables",
        "60 orders with states, quoted commas",
        "120 orders with corrections and unknown customers",
    ),
)
