"""Defaults of every sandbox, whichever backend makes it: environment, capabilities, shared memory."""

from __future__ import annotations

SHARED_MEMORY_BYTES = 64 * 1024 * 1024  # as Docker gives; it counts as memory of the sandbox

# What Docker grants, without NET_RAW and MKNOD. Each stays inside the namespaces.
CAPABILITIES = (
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "SETUID",
    "SETGID",
    "KILL",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "SYS_CHROOT",
    "SETFCAP",
    "AUDIT_WRITE",
)

BASE_ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "USER": "root",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "PAGER": "cat",
}
