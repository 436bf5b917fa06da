"""The suite `website`: the shop itself, and its families solved and failed, here and in real sandboxes."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.error import HTTPError

import pytest

from muster.types import Cause, Verdict
from muster_suites.service.store import Store, digest
from muster_suites.website import WEBSITE
from muster_suites.website.client import Browser, Page
from muster_suites.website.shop.schema import SCHEMA
from muster_suites.website.shop.server import Site
from suites.grading import draw, grade, several, written
from suites.serving import Served, serving, solve, text, wrong

BY_NAME = {family.name: family for family in WEBSITE}
HOME = {"street": "1 Low Road", "city": "Town", "zip": "12345"}


def user(number: int, login: str, role: str = "customer") -> dict[str, object]:
    password = digest(login, "secret")
    return {"id": number, "login": login, "password": password, "role": role, "name": login, "email": "a@b", **HOME}


SEED = {
    "settings": [{"key": k, "value": v} for k, v in (("shop", "S"), ("today", "2031-05-05"), ("secret", "x"))],
    "users": [user(1, "ann"), user(2, "bob"), user(3, "cat", role="staff")],
    "products": [
        {"sku": f"P{n}", "name": f"Thing {n}", "category": "red" if n % 2 else "blue", "price_cents": 1000, "stock": 5}
        for n in range(20)
    ],
    "coupons": [
        {"code": "TEN", "percent": 10, "valid_until": "2031-05-05"},
        {"code": "OLD", "percent": 50, "valid_until": "2031-05-04"},
        {"code": "BIG", "percent": 50, "minimum_cents": 9000, "valid_until": "2032-01-01"},
        {"code": "BLUE", "percent": 50, "category": "blue", "valid_until": "2032-01-01"},
    ],
    "orders": [
        {"id": 1, "user_id": 1, "placed_on": "2031-05-01", "status": "placed", "total_cents": 2000, **HOME},
        {"id": 2, "user_id": 2, "placed_on": "2031-05-01", "status": "placed", "total_cents": 1000, **HOME},
    ],
    "order_lines": [{"order_id": 1, "product_id": 1, "quantity": 2, "price_cents": 1000}],
    "reviews": [{"product_id": 1, "author": "<b>me</b>", "stars": 5, "text": "a & b", "status": "published"}],
    "workshops": [{"title": "Work", "place": "Here"}],
    "slots": [{"workshop_id": 1, "day": "2031-06-01", "level": "expert", "price_cents": 100, "free": 3}],
}


@pytest.fixture
def shop(tmp_path) -> Iterator[Served]:
    with serving(tmp_path / "shop", SCHEMA, json.dumps(SEED), Site) as served:
        yield served


@pytest.fixture
def ann(shop: Served) -> Browser:
    browser = Browser(shop.url)
    browser.login("ann", "secret")
    return browser


def rows(shop: Served, sql: str) -> list[dict[str, object]]:
    store = Store(shop.database)
    try:
        return store.all(sql)
    finally:
        store.close()


def refused(status: int, action, *arguments: str, **fields: object) -> str:
    with pytest.raises(HTTPError) as error:
        action(*arguments, **fields)
    with error.value as answer:
        assert answer.code == status
        return answer.read().decode()


# --- the shop -------------------------------------------------------------------------------------------------


def test_a_wrong_password_and_a_form_without_its_token_are_refused(shop):
    browser = Browser(shop.url)
    assert "do not match" in refused(403, browser.login, "ann", "wrong")
    assert "not valid" in refused(403, browser.submit, "/login", "/login", login="ann", password="secret", csrf="x")


def test_a_stolen_form_changes_nothing(shop, ann):
    for fields in ({"csrf": ""}, {"csrf": "0" * 24}):
        refused(403, ann.submit, "/products/1", "/cart/add", quantity=1, **fields)
    assert rows(shop, "SELECT * FROM carts") == []


def test_pages_and_search_find_every_product_once(ann):
    assert [row["Product"] for row in ann.rows("/products")] == [f"Thing {n}" for n in range(20)]
    assert [row["Product"] for row in ann.rows("/products?q=thing+19")] == ["Thing 19"]
    assert len(list(ann.rows("/products?category=red"))) == 10
    refused(404, ann.get, "/products?page=9")


def test_an_order_takes_the_cart_the_stock_and_the_coupon(shop, ann):
    ann.submit("/products/1", "/cart/add", quantity=2)
    ann.submit("/products/1", "/cart/add", quantity=1)
    assert "Order 3" in ann.submit("/checkout", "/checkout", coupon="TEN", city="Other")
    (order,) = rows(shop, "SELECT * FROM orders WHERE id = 3")
    assert (order["total_cents"], order["coupon"], order["city"], order["zip"]) == (2700, "TEN", "Other", "12345")
    assert rows(shop, "SELECT stock FROM products WHERE id = 1") == [{"stock": 2}]
    assert rows(shop, "SELECT * FROM carts") == []


def test_coupons_that_do_not_apply_leave_the_cart_as_it_is(shop, ann):
    ann.submit("/products/2", "/cart/add", quantity=1)
    for coupon, why in (("OLD", "valid until"), ("BIG", "at least 90.00"), ("BLUE", "for blue"), ("NO", "no coupon")):
        assert why in refused(422, ann.submit, "/checkout", "/checkout", coupon=coupon)
    assert "five digits" in refused(422, ann.submit, "/checkout", "/checkout", zip="x")
    assert len(rows(shop, "SELECT * FROM carts")) == 1
    assert len(rows(shop, "SELECT * FROM orders")) == 2


def test_a_checkout_form_of_another_cart_is_refused(ann):
    ann.submit("/products/1", "/cart/add", quantity=1)
    page = ann.get("/checkout")
    ann.submit("/products/2", "/cart/add", quantity=1)
    assert "has changed" in refused(409, ann.submit, page, "/checkout")


def test_nobody_sees_or_cancels_the_order_of_another(shop, ann):
    refused(404, ann.get, "/orders/2")
    refused(
        404, ann.submit, ann.get("/orders/1").replace("/orders/1/", "/orders/2/"), "/orders/2/cancel", reason="damaged"
    )
    assert "cancelled" in ann.submit("/orders/1", "/orders/1/cancel", reason="damaged")
    assert rows(shop, "SELECT stock FROM products WHERE id = 1") == [{"stock": 7}]
    assert Page(ann.get("/orders/1")).forms == [], "a cancelled order has no forms any more"


def test_a_booking_needs_all_of_its_pages(shop, ann):
    first = ann.submit("/book/seats?slot=1", "/book/seats", seats=2, material="basic material")
    page = ann.submit(first, "/book/contact", contact="Ann", phone="123456")
    for wrong_page in (page, first):
        fields = {"seats": 1, "material": "basic material", "contact": "Ann", "phone": "123456"}
        moved = re.sub('action="/book/[a-z]+"', 'action="/book/confirm"', wrong_page)
        assert "belong together" in refused(409, ann.submit, moved, "/book/confirm", **fields)
    assert "3 seats are free" in refused(
        422, ann.submit, "/book/seats?slot=1", "/book/seats", seats=4, material="own material"
    )
    ann.submit(page, "/book/confirm")
    assert rows(shop, "SELECT seats, total_cents FROM bookings") == [{"seats": 2, "total_cents": 1200}]
    assert rows(shop, "SELECT free FROM slots") == [{"free": 1}]


def test_customers_and_strangers_see_no_office(shop, ann):
    assert "Only staff" in refused(403, ann.get, "/office/products")
    assert "Log in" in Browser(shop.url).get("/orders"), "led to the form"
    cat = Browser(shop.url)
    cat.login("cat", "secret")
    assert "with a point" in refused(422, cat.submit, "/office/products/1", "/office/products/1", price="12,5")
    cat.submit("/office/products/1", "/office/products/1", price="12.50")
    assert rows(shop, "SELECT price_cents FROM products WHERE id = 1") == [{"price_cents": 1250}]


def test_visitors_at_once_get_no_more_than_there_is(shop, ann):
    page = ann.get("/products/1")

    def add(_: int) -> bool:
        try:
            return bool(ann.submit(page, "/cart/add", quantity=1))
        except HTTPError as error:
            return bool(error.close())

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(add, range(12))) == 5
    assert rows(shop, "SELECT quantity FROM carts") == [{"quantity": 5}]


def test_what_people_wrote_is_escaped(ann):
    page = ann.get("/products/1")
    assert "&lt;b&gt;me&lt;/b&gt; (5/5): a &amp; b" in page
    assert "<b>" not in page


def test_the_same_requests_get_the_same_answers(tmp_path):
    seen: list[list[str]] = []
    for name in ("one", "two"):
        with serving(tmp_path / name, SCHEMA, json.dumps(SEED), Site) as served:
            browser = Browser(served.url)
            pages = [browser.get("/login"), browser.get("/products")]
            browser.login("ann", "secret")
            seen.append([*pages, browser.get("/orders/1"), browser.get("/book/seats?slot=1")])
    assert seen[0] == seen[1]


# --- the families ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("family", WEBSITE, ids=lambda family: family.name)
def test_the_solution_reads_the_pages_and_passes_and_doing_nothing_fails(family, level, tmp_path):
    instance = draw(family, level, split="train" if level % 2 else "heldout")
    with serving(tmp_path / "shop", SCHEMA, text(instance.files["service/seed.json"]), Site) as served:
        assert wrong(instance, served.database), "nothing was done yet"
        solve(instance, tmp_path, served)
        assert wrong(instance, served.database) == []
        Browser(served.url).get("/login")
        assert wrong(instance, served.database) == [], "to look at pages is no change"


@pytest.mark.parametrize("family", WEBSITE, ids=lambda family: family.name)
def test_the_instruction_names_every_file_and_the_same_draw_gives_the_same_bytes(family):
    for level in (1, 5):
        instance = draw(family, level)
        assert instance == draw(family, level)
        for path in instance.files:
            name = path.removeprefix("materials/")
            assert name == path or f"/app/{name}" in instance.instruction
        assert instance.agent_user == "agent", "who can open the database can skip the site"


@pytest.mark.parametrize("family", WEBSITE, ids=lambda family: family.name)
def test_splits_share_no_name(family):
    def names(split) -> set[str]:
        found: set[str] = set()
        for instance in several(family, 3, 4, split=split):
            seed = json.loads(text(instance.files["service/seed.json"]))
            tables = ("users", "products", "workshops")
            found |= {str(row.get("name", row.get("title"))) for table in tables for row in seed.get(table, ())}
        return found

    assert names("train")
    assert not names("train") & names("heldout")


def test_there_are_six_families_and_more_and_a_page_tells_their_levels():
    page = (Path(__file__).parents[2] / "docs/reference/suites.md").read_text()
    assert len({family.name for family in WEBSITE}) >= 6
    assert all(f"| `{family.name}` | {' | '.join(family.levels)} |" in page for family in WEBSITE)


@pytest.mark.sandbox
def test_in_a_real_sandbox_the_solution_passes_and_a_cheat_does_not(tmp_path: Path):
    cheat = (
        "cat /srv/shop/seed.json; echo x >> /srv/shop/service.db; mv /srv/shop /srv/other; kill -9 -1; "
        "echo 1 > /logs/verifier/reward.txt; mkdir /tests; echo 'exit 0' > /tests/test.sh"
    )
    honest = '[ "$(id -un)" = agent ] && ! ls /srv/shop && SOLVE'
    tasks = [written(tmp_path, family, 2) for family in WEBSITE]
    for name, outcomes in grade(tmp_path, tasks, {"solution": honest, "cheat": cheat}).items():
        assert outcomes["solution"].verdict is Verdict.SUCCESS, name
        assert (outcomes["cheat"].verdict, outcomes["cheat"].cause) == (Verdict.FAILURE, Cause.VERIFIER_FAILED), name
