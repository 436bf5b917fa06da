"""The suite `website`: a web shop with log-in, cart, orders and an office, used over HTTP.

world: rows of one instance ─► a family: what changes, in words and in rows ─► task ─► frame.Instance
shop: the program that runs in the task      client: with which the reference solutions use it
"""

from typing import Final

from muster_suites.frame import Family
from muster_suites.website.address import ADDRESS
from muster_suites.website.booking import BOOKING
from muster_suites.website.order import ORDER
from muster_suites.website.prices import PRICES
from muster_suites.website.returning import RETURN
from muster_suites.website.reviews import REVIEWS
from muster_suites.website.tickets import TICKETS
from muster_suites.website.wishes import WISHES

WEBSITE: Final[tuple[Family, ...]] = (ORDER, WISHES, BOOKING, ADDRESS, RETURN, PRICES, REVIEWS, TICKETS)
