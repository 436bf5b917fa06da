from __future__ import annotations

import pytest

from muster.errors import SandboxStartError
from muster.sandbox.namespace.isolation.accounts import Account, resolve

PASSWD = "root:x:0:0:root:/root:/bin/bash\nweb:x:33:34:Web:/var/www:/usr/sbin/nologin\nbroken line\n"
GROUP = "root:x:0:\nweb:x:34:\nstaff:x:50:web,other\nadm:x:4:web\n"


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ("", Account()),
        ("root", Account()),
        ("web", Account(uid=33, gid=34, groups=(34, 50, 4), name="web", home="/var/www")),
        ("33", Account(uid=33, gid=34, groups=(34, 50, 4), name="web", home="/var/www")),
        ("web:staff", Account(uid=33, gid=50, groups=(50,), name="web", home="/var/www")),
        ("1000", Account(uid=1000, gid=0, groups=(0,), name="1000", home="/")),
        ("1000:1001", Account(uid=1000, gid=1001, groups=(1001,), name="1000", home="/")),
        (":staff", Account(uid=0, gid=50, groups=(50,), name="root", home="/root")),
    ],
)
def test_a_user_is_found_as_docker_finds_it(user: str, expected: Account) -> None:
    assert resolve(user, passwd=PASSWD, group=GROUP) == expected


@pytest.mark.parametrize("user", ["nobody-here", "web:no-group"])
def test_a_name_that_the_image_lacks_is_an_error_that_says_so(user: str) -> None:
    with pytest.raises(SandboxStartError, match=r"the image has no (user 'nobody-here'|group 'no-group')"):
        resolve(user, passwd=PASSWD, group=GROUP)


def test_root_becomes_nobody_else() -> None:
    assert Account().spec is None
    assert resolve("web", passwd=PASSWD, group=GROUP).spec == "33:34:34,50,4"


def test_an_image_without_users_has_root() -> None:
    assert resolve("", passwd="", group="") == Account()
