"""Parts of this machine that a build sees. Law: what makes RUN work here, and nothing of it in an image or a key but
the package database.

    packages  the host's dpkg database: the /usr of a host-derived image is the host's, so its list of packages is too;
              apt then installs what is missing on top. A layer of the image, for images with a RUN
    lent      certificates (a proxy of your network may sign with its own), apt's sources and keys, for the time of the
              build: a layer below the image's own, left out of the snapshot
    env       where these are, and the package indexes that the host is set to use

Third-party sources and those with passwords stay on the host.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from muster.sandbox.namespace.build.layers import LayerStore, digest, make_directories

_PLACE = "run/muster"
_CERTIFICATES = f"/{_PLACE}/certificates.pem"
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Arch
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL
    "/etc/ssl/ca-bundle.pem",  # SUSE
    "/etc/ssl/cert.pem",  # Alpine
)
_CERTIFICATE_ENV = (
    "SSL_CERT_FILE",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "PIP_CERT",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
)
_HOST_SETTINGS = (
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "PIP_TRUSTED_HOST",
    "PIP_DEFAULT_TIMEOUT",
    "UV_DEFAULT_INDEX",
    "UV_INDEX_URL",
    "NPM_CONFIG_REGISTRY",
    "GOPROXY",
)
# No user to drop to for an ordinary user's build; no archives and caches left in a layer.
_APT_PLAIN = """\
APT::Sandbox::User "root";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb"; };
"""
_APT_CONF = f'{_APT_PLAIN}Acquire::https::CaInfo "{_CERTIFICATES}";\n'
_APT_SOURCES = ("sources.list", "sources.list.d/debian.sources", "sources.list.d/ubuntu.sources")
_APT_KEYS = ("trusted.gpg", "trusted.gpg.d", "keyrings")
_PASSWORD = re.compile(r"://[^/\s]*@")
# Installed services must not start while an image is built; Debian asks this program.
_POLICY = "#!/bin/sh\nexit 101\n"

_DPKG = Path("var/lib/dpkg")
# statoverride names users of the host, whom an image does not have
_DPKG_LEFT_OUT = shutil.ignore_patterns("[Ll]ock*", "*-old", "parts", "statoverride", "updates")
_DPKG_DIRECTORIES = ("updates", "parts")
_APT_DIRECTORIES = (
    *(f"etc/apt/{name}" for name in ("apt.conf.d", "keyrings", "preferences.d", "sources.list.d", "trusted.gpg.d")),
    "var/cache/apt/archives/partial",
    "var/cache/debconf",
    "var/lib/apt/lists/partial",
    "var/log/apt",
)
# What maintainer scripts of packages read; no secrets in there.
_ETC = (
    "adduser.conf",
    "ca-certificates.conf",
    "debconf.conf",
    "deluser.conf",
    "dpkg",
    "login.defs",
    "pam.conf",
    "pam.d",
    "security/limits.conf",
    "ucf.conf",
)
# The distribution's own list of users: what its packages count on, and nobody of this machine.
_USERS = Path("usr/share/base-passwd")
_APT_USER = "_apt:x:42:65534::/nonexistent:/usr/sbin/nologin\n"


class Provision:
    """Blocking file work; each layer is made once. `root`: the machine's own root, for tests another."""

    def __init__(self, store: LayerStore, root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> None:
        self._store = store
        self._root = root
        self._environ = environ

    @cached_property
    def packages(self) -> Path | None:
        """The layer with the package database; None on a host without dpkg. Its name changes with the packages."""
        status = self._root / _DPKG / "status"
        if not status.is_file():
            return None
        key = f"packages-{digest(status.read_bytes(), _ETC, _APT_DIRECTORIES, _APT_USER)}"
        return self._store.layer(key, self._write_packages)

    def lent(self, *, host_usr: bool) -> Path:
        """The layer for builds alone. A root file system of its own has its own package sources."""
        certificates = self._certificates
        sources = self._sources() if host_usr else {}
        files = {f"{_PLACE}/apt.conf": (_APT_CONF if certificates else _APT_PLAIN).encode(), **sources}
        if certificates:
            files[_CERTIFICATES[1:]] = certificates
        if certificates and host_usr:
            files[_BUNDLES[0][1:]] = certificates
        if host_usr:
            files["usr/sbin/policy-rc.d"] = _POLICY.encode()
        key = f"lent-{digest(sorted(files.items()))}"

        def write(layer: Path) -> None:
            for name, content in files.items():
                make_directories(layer, Path(name).parent)
                (layer / name).write_bytes(content)
                (layer / name).chmod(0o755 if content.startswith(b"#!") else 0o644)

        return self._store.layer(key, write)

    def env(self, *, host_usr: bool) -> dict[str, str]:
        env = {name: self._environ[name] for name in _HOST_SETTINGS if name in self._environ}
        env |= {"APT_CONFIG": f"/{_PLACE}/apt.conf", "DEBIAN_FRONTEND": "noninteractive"}
        env |= {"PIP_ROOT_USER_ACTION": "ignore", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        if host_usr:
            env["PIP_BREAK_SYSTEM_PACKAGES"] = "1"  # an image is no system: pip may install into it
        return env | (dict.fromkeys(_CERTIFICATE_ENV, _CERTIFICATES) if self._certificates else {})

    @cached_property
    def _certificates(self) -> bytes:
        bundles = [self._root / b[1:] for b in _BUNDLES]
        return next((b.read_bytes() for b in bundles if b.is_file()), b"")

    def _sources(self) -> dict[str, bytes]:
        """Files below etc/apt: the distribution's own sources, and all public keys."""
        apt = self._root / "etc" / "apt"
        found = [apt / name for name in _APT_SOURCES]
        for name in _APT_KEYS:
            found += sorted((apt / name).rglob("*")) if (apt / name).is_dir() else [apt / name]
        contents = {str(f.relative_to(self._root)): f.read_bytes() for f in found if f.is_file()}
        return {n: c for n, c in contents.items() if not _PASSWORD.search(c.decode(errors="replace"))}

    def _write_packages(self, layer: Path) -> None:
        make_directories(layer, _DPKG.parent)
        shutil.copytree(self._root / _DPKG, layer / _DPKG, symlinks=True, ignore=_left_out)
        for name in (*_APT_DIRECTORIES, *(_DPKG / d for d in _DPKG_DIRECTORIES)):
            make_directories(layer, name)
        for name in _ETC:
            source, target = self._root / "etc" / name, layer / "etc" / name
            make_directories(layer, Path("etc", name).parent)
            if source.is_dir():
                shutil.copytree(source, target, symlinks=True, ignore=_left_out)
            elif source.is_file():
                shutil.copy2(source, target)
        for name, more in (("passwd", _APT_USER), ("group", "")):
            master = self._root / _USERS / f"{name}.master"
            if master.is_file():
                (layer / "etc" / name).write_text(master.read_text().replace(":*:", ":x:") + more)


def _left_out(directory: str, names: list[str]) -> set[str]:
    """Names to leave out: what not everybody on the host may read is nobody's business in an image."""
    closed = {name for name in names if not Path(directory, name).lstat().st_mode & stat.S_IROTH}
    return closed | _DPKG_LEFT_OUT(directory, names)
