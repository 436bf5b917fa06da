"""Hosts that a sandbox may reach: names, addresses, and names that lead to addresses they should not."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import ConfigError, TaskError
from muster.sandbox.egress import rules
from muster.sandbox.egress.rules import Address, named, normal, parse, reachable

LABELS = st.from_regex(r"[a-z]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True)
NAMES = st.lists(LABELS, min_size=2, max_size=4).map(".".join)
PUBLIC = ipaddress.ip_address("93.184.216.34")


def address(text: str) -> Address:
    return ipaddress.ip_address(text)


@given(NAMES)
def test_a_name_on_the_list_is_reached_on_the_ports_of_the_web_alone(name: str) -> None:
    assert named(parse([name]), name, 443) == ""
    assert named(parse([name]), name, 80) == ""
    assert "port 22" in named(parse([name]), name, 22)


@given(NAMES, NAMES)
def test_no_other_name_is(name: str, other: str) -> None:
    if name != other:
        assert other in named(parse([name]), other, 443)


@given(NAMES, LABELS)
def test_a_star_covers_what_is_below_a_name_and_not_the_name_itself(name: str, label: str) -> None:
    listed = parse(["*." + name])
    assert named(listed, f"{label}.{name}", 443) == ""
    assert named(listed, f"{label}.{label}.{name}", 443) == ""
    assert named(listed, name, 443) != ""
    assert named(listed, f"{label}{name}", 443) != ""  # notx.org is not below x.org


def test_a_star_of_a_number_matches_no_address() -> None:
    assert named(parse(["*.1.1.1"]), "8.1.1.1", 443) != ""


def test_an_entry_with_a_port_opens_that_port_alone() -> None:
    listed = parse(["x.org:8443"])
    assert named(listed, "x.org", 8443) == ""
    assert named(listed, "x.org", 443) != ""


@given(NAMES)
def test_a_lone_star_allows_every_name(name: str) -> None:
    assert named(parse(["*"]), name, 443) == ""


@given(NAMES)
def test_an_empty_list_allows_nothing(name: str) -> None:
    assert named(parse([]), name, 443) != ""


@pytest.mark.parametrize("spelling", ["Example.org", "example.org."])
def test_one_host_has_one_spelling(spelling: str) -> None:
    assert normal(spelling) == "example.org"
    assert named(parse([spelling]), "example.org", 443) == ""


@pytest.mark.parametrize(
    "text", ["", "a b", "x..org", "http://x.org", "x.org/path", "a@b", "fe80::1%eth0", "*x.org", "x.*", "ä.org"]
)
def test_what_is_no_host_is_refused_with_the_way_to_write_it(text: str) -> None:
    with pytest.raises(TaskError, match=r"write x\.org"):
        parse([text])


@given(st.sampled_from(rules.HOST_NETWORKS + rules.PRIVATE_NETWORKS), st.data())
def test_no_name_leads_to_this_machine_or_its_network(network: str, data: st.DataObject) -> None:
    inside = data.draw(st.ip_addresses(network=network))
    assert reachable(parse(["*", "rebinding.org"]), 443, [inside]) == []


@given(st.sampled_from([n for n in rules.HOST_NETWORKS + rules.PRIVATE_NETWORKS if "." in n]), st.data())
def test_nor_in_the_disguise_of_an_ipv6_address(network: str, data: st.DataObject) -> None:
    inside = int(data.draw(st.ip_addresses(network=network)))
    for prefix in ("::ffff:0:0", "64:ff9b::"):
        disguised = ipaddress.IPv6Address(int(ipaddress.IPv6Address(prefix)) | inside)
        assert reachable(parse(["*"]), 443, [disguised]) == []


@given(st.ip_addresses())
def test_an_address_of_this_machine_is_never_reached(own: Address) -> None:
    assert reachable(parse(["*", str(own)]), 443, [own], own={own}) == []


@given(st.sampled_from(rules.HOST_NETWORKS), st.data())
def test_not_even_when_the_list_names_it(network: str, data: st.DataObject) -> None:
    inside = data.draw(st.ip_addresses(network=network))
    assert reachable(parse([str(inside)]), 443, [inside]) == []


@given(st.sampled_from(rules.PRIVATE_NETWORKS), st.data())
def test_a_private_address_is_reached_when_the_list_names_it(network: str, data: st.DataObject) -> None:
    inside = data.draw(st.ip_addresses(network=network))
    listed = parse([str(inside)])
    assert named(listed, str(inside), 443) == ""
    assert reachable(listed, 443, [inside]) == [inside]
    assert reachable(listed, 22, [inside]) == []


def test_the_operator_opens_what_no_task_can() -> None:
    opened = parse(["*"], opened=["10.1.0.0/16", "127.0.0.1"])
    inside = [address("10.1.2.3"), address("127.0.0.1")]
    assert reachable(opened, 443, [*inside, address("10.2.0.1")]) == inside
    with pytest.raises(ConfigError, match="egress_networks"):
        parse([], opened=["10.1.2.3/16"])


def test_of_several_addresses_the_good_ones_are_left() -> None:
    assert reachable(parse(["*"]), 443, [address("10.0.0.1"), PUBLIC, address("::1")]) == [PUBLIC]


@pytest.mark.parametrize("text", ["8.8.8.8", "203.0.113.9", "198.18.0.1", "2606:4700::1111"])
def test_public_addresses_are_reached_and_so_are_those_that_resolvers_make_up(text: str) -> None:
    assert reachable(parse(["*"]), 443, [address(text)]) == [address(text)]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("x.org", ("x.org", None)),
        ("x.org:80", ("x.org", 80)),
        ("[::1]:80", ("[::1]", 80)),
        ("[::1]", ("[::1]", None)),
        ("fd00::1", ("fd00::1", None)),
    ],
)
def test_a_port_is_told_from_the_colons_of_an_address(text: str, parts: tuple[str, int | None]) -> None:
    assert rules.split_port(text) == parts


@pytest.mark.parametrize("text", ["x.org:", "x.org:0", "x.org:65536", "x.org:http", "x.org:-1", "x.org:8²"])
def test_a_bad_port_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no port"):
        rules.split_port(text)
