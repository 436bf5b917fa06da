"""Egress rules: the hosts that a sandbox may reach. Law: pure; nothing is resolved before its name is allowed.

    host:port ─► named? ─► resolve ─► reachable? ─► connect to that very address
                   └ 403               └ 403

A name on the list is no permission to reach this machine or its network: whoever owns a name decides where it
points. So every address is judged as well, whatever name led to it. What no proxy can see is what a listed host
does for its clients: one that fetches pages for others, or a front that many sites share, leads to those too.

| address                                          | reached when                                             |
|--------------------------------------------------|----------------------------------------------------------|
| in a network that the operator opened            | always                                                   |
| of this machine, its link, multicast, reserved   | never                                                    |
| private                                          | the list names that address itself, not a name for it    |
| any other                                        | always                                                   |
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from muster.errors import ConfigError, TaskError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

WEB_PORTS = (80, 443)
"""Open where an entry names no port."""

# `ipaddress.is_private` also covers ranges for documentation and benchmarks, which some resolvers hand out for
# public names: so the networks are written out. Registry: IANA special-purpose addresses, RFC 6890.
HOST_NETWORKS = (
    "0.0.0.0/8",  # "this host"
    "127.0.0.0/8",
    "169.254.0.0/16",  # link-local, where clouds serve credentials
    "192.0.0.0/24",  # protocol assignments; another cloud's metadata
    "224.0.0.0/4",
    "240.0.0.0/4",  # reserved, and broadcast
    "::/96",  # unspecified, loopback, IPv4 in its deprecated form
    "64:ff9b:1::/48",  # local-use translation to IPv4
    "2002::/16",  # 6to4 carries any IPv4 address
    "fe80::/10",
    "fec0::/10",
    "ff00::/8",
)
PRIVATE_NETWORKS = ("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")
# IPv6 addresses that stand for the IPv4 address in their last 32 bits
_EMBEDDING = tuple(ipaddress.IPv6Network(n) for n in ("::ffff:0:0/96", "64:ff9b::/96"))
_HOST = tuple(ipaddress.ip_network(n) for n in HOST_NETWORKS)
_PRIVATE = tuple(ipaddress.ip_network(n) for n in PRIVATE_NETWORKS)

_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]{0,62})(\.[a-z0-9_]([a-z0-9_-]{0,62}))*")


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedHost:
    """One line of an allow list. `host`: a name, an address, "*.x.org" (below x.org) or "*" (any)."""

    host: str
    port: int | None = None  # None: `WEB_PORTS`

    def matches_port(self, port: int) -> bool:
        return port in WEB_PORTS if self.port is None else port == self.port

    def matches_host(self, host: str) -> bool:
        if self.host == "*":
            return True
        if self.host.startswith("*."):
            return host.endswith(self.host[1:]) and address_of(host) is None
        return host == self.host


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Egress rules of one sandbox. `opened`: networks beyond the public ones that the operator allows.

    Example: `named(parse(["example.org", "*.example.net", "api.test:8443"]), "example.org", 443) == ""`
    """

    entries: tuple[AllowedHost, ...]
    opened: tuple[Network, ...] = ()


def parse(hosts: Iterable[str], opened: Iterable[str] = ()) -> Rules:
    """Raises `TaskError` for an entry of a task, `ConfigError` for an opened network that is none."""
    networks: list[Network] = []
    for text in opened:
        try:
            networks.append(ipaddress.ip_network(text))
        except ValueError as error:
            raise ConfigError(
                f"sandbox.egress_networks: {error}: write an address, or a network as 10.1.0.0/16"
            ) from None
    return Rules(entries=tuple(_entry(host) for host in hosts), opened=tuple(networks))


def named(rules: Rules, host: str, port: int) -> str:
    """Reason why `host` (in its `normal` form) may not be asked for; empty when it may."""
    entries = [entry for entry in rules.entries if entry.matches_host(host)]
    if not entries:
        return f"{host} is not on the list of hosts that this sandbox may reach"
    if not any(entry.matches_port(port) for entry in entries):
        return f"port {port} of {host} is not on the list of what this sandbox may reach"
    return ""


def reachable(rules: Rules, port: int, addresses: Sequence[Address], own: Collection[Address] = ()) -> list[Address]:
    """Those of the `addresses` of an allowed host that may be connected to. `own`: which are this machine's."""
    return [address for address in addresses if _reachable(rules, port, address, own)]


def normal(host: str) -> str:
    """The one spelling of a host by which it is compared. Raises `ValueError` for what is no host."""
    inner = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    address = address_of(inner)
    if address is not None:
        return str(address)
    name = inner.lower().removesuffix(".")
    if not _NAME.fullmatch(name):
        raise ValueError(f"{host[:60]!r} is no host name")
    return name


def address_of(host: str) -> Address | None:
    """The address that `host` spells; None for a name. Scoped addresses (fe80::1%eth0) are none."""
    try:
        return None if "%" in host else ipaddress.ip_address(host)
    except ValueError:
        return None


def split_port(authority: str) -> tuple[str, int | None]:
    """ "x.org:80" or "[::1]:80" in its two parts; None where there is no port. Raises `ValueError`."""
    if authority.count(":") > 1 and not authority.startswith("["):
        return authority, None
    host, colon, port = authority.rpartition(":")
    if not colon or port.endswith("]"):
        return authority, None
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"{port[:20]!r} is no port")
    return host, int(port)


def _entry(text: str) -> AllowedHost:
    try:
        host, port = split_port(text.strip())
        if host == "*":
            return AllowedHost(host=host, port=port)
        if host.startswith("*."):
            return AllowedHost(host="*." + normal(host[2:]), port=port)
        return AllowedHost(host=normal(host), port=port)
    except ValueError as error:
        raise TaskError(
            f"egress {text!r}: {error}: write x.org, *.x.org, x.org:8443 or * for any public host"
        ) from None


def _reachable(rules: Rules, port: int, address: Address, own: Collection[Address]) -> bool:
    meant = _meant(address)
    if any(meant in network for network in rules.opened):
        return True
    if address in own or meant in own or any(meant in network for network in _HOST):
        return False
    listed = any(entry.host == str(address) and entry.matches_port(port) for entry in rules.entries)
    return listed or not any(meant in network for network in _PRIVATE)


def _meant(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for, else itself."""
    if isinstance(address, ipaddress.IPv6Address) and any(address in network for network in _EMBEDDING):
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address
