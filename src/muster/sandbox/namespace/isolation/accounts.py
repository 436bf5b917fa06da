"""Account of a shell: `USER` of an image, resolved in the sandbox's own passwd and group. Law: pure, text in."""

from __future__ import annotations

from dataclasses import dataclass

from muster.errors import SandboxStartError


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Account of a shell: numbers, and what a login would set. `groups` includes `gid`."""

    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = (0,)
    name: str = "root"
    home: str = "/root"

    @property
    def spec(self) -> str | None:
        """As PID 1 takes it: uid:gid:groups. None for root, who need not become anyone."""
        if self.uid == 0 and self.gid == 0:
            return None
        return f"{self.uid}:{self.gid}:{','.join(map(str, self.groups))}"


def resolve(user: str, *, passwd: str, group: str) -> Account:
    """`user` is "name", "uid", "name:group" or "uid:gid"; empty: root. Raises `SandboxStartError` for unknown names.

    Example: `resolve("www-data", passwd=..., group=...).home == "/var/www"`
    """
    name, _, group_name = user.partition(":")
    users = {e[0]: e for line in passwd.splitlines() if len(e := line.split(":")) >= 6 and e[2].isdecimal()}
    groups = {e[0]: e for line in group.splitlines() if len(e := line.split(":")) >= 4 and e[2].isdecimal()}
    entry = users.get(name or "root")
    if entry is None and name.isdecimal():
        entry = next((e for e in users.values() if e[2] == name), [name, "", name, "0", "", "/"])
    if entry is None:
        if not name:
            return Account()
        raise SandboxStartError(f"the image has no user {name!r} in /etc/passwd")
    gid = int(entry[3]) if entry[3].isdecimal() else 0
    if group_name:
        if not group_name.isdecimal() and group_name not in groups:
            raise SandboxStartError(f"the image has no group {group_name!r} in /etc/group")
        gid = int(group_name if group_name.isdecimal() else groups[group_name][2])
    # as Docker: a group given by hand takes the place of all others
    more = () if group_name else (int(e[2]) for e in groups.values() if entry[0] in e[3].split(","))
    return Account(
        uid=int(entry[2]), gid=gid, groups=tuple(dict.fromkeys((gid, *more))), name=entry[0], home=entry[5] or "/"
    )
