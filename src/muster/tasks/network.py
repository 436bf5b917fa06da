"""Network of a task's phases: the hosts that each may reach. Law: nothing, unless the task says so.

    verifier ─► its own table, else that of its environment       agent ─► its own table, else [environment]
                                    └─► egress ─► hosts, as `types.Limits.egress` takes them

Harbor takes silence for "public". Muster does not: what a task does not ask for, an agent does not get.
"""

from __future__ import annotations

import re
from ipaddress import ip_address, ip_network
from typing import Final

from muster.tasks.task_toml import EnvironmentTable, NetworkTable

ANYWHERE: Final = ("*",)
_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


def egress(*tables: NetworkTable) -> tuple[str, ...]:
    """The hosts that the first of `tables` with a word on the network allows."""
    for table in tables:
        mode = table.asked_mode if isinstance(table, EnvironmentTable) else table.network_mode
        if mode is None:
            continue
        if mode == "allowlist":
            return tuple(dict.fromkeys(normal(host) for host in table.allowed_hosts or ()))
        return ANYWHERE if mode == "public" else ()
    return ()


def normal(host: str) -> str:
    return host.strip().lower().rstrip(".")


def host_problem(host: str) -> str | None:
    """Problem of an entry of `allowed_hosts`; None for a good one."""
    name = normal(host)
    if "/" in name:
        return f"address ranges are not supported yet ({host!r}); name the hosts" if _is_range(name) else _no_host(host)
    if _is_address(name):
        return None
    stem = name.removeprefix("*.")
    if "*" in stem:
        return f"{host!r}: only a leading '*.' is a pattern; write network_mode = 'public' for any host"
    if _is_address(stem) or not all(_LABEL.fullmatch(label) for label in stem.split(".")):
        return _no_host(host)
    return None


def _no_host(host: str) -> str:
    return f"expected a host name, *.name or an IP address (no URL, port or path), found {host!r}"


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return "%" not in text  # a zone is no part of an address here


def _is_range(text: str) -> bool:
    try:
        ip_network(text, strict=False)
    except ValueError:
        return False
    return True
