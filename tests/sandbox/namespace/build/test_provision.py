from __future__ import annotations

from pathlib import Path

import pytest

from muster.sandbox.namespace.build.layers import LayerStore
from muster.sandbox.namespace.build.provision import Provision
from muster.sandbox.namespace.storage.state import RunDirectory


@pytest.fixture
def store(tmp_path: Path) -> LayerStore:
    return LayerStore(tmp_path / "state" / "images", RunDirectory(tmp_path / "state", "test"))


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """The root of another machine."""
    root = tmp_path / "machine"
    files = {
        "etc/ssl/certs/ca-certificates.crt": "certificate",
        "etc/apt/sources.list": "deb http://deb.example.org stable main",
        "etc/apt/sources.list.d/debian.sources": "URIs: https://user:password@mirror.example.org/",
        "etc/apt/sources.list.d/other.list": "deb http://third.example.org x y",
        "etc/apt/auth.conf.d/mine": "password",
        "etc/apt/apt.conf.d/proxy": "password",
        "etc/apt/keyrings/key.gpg": "key",
        "etc/adduser.conf": "settings",
        "etc/shadow": "password",
        "etc/pam.d/closed": "password",
        "etc/pam.d/su": "settings",
        "var/lib/dpkg/status": "Package: a",
        "usr/share/base-passwd/passwd.master": "root:*:0:0:root:/root:/bin/bash\n",
        "var/lib/dpkg/statoverride": "somebody",
        "var/lib/dpkg/status-old": "old",
        "var/lib/dpkg/lock": "",
        "var/lib/dpkg/info/a.list": "/usr/bin/a",
    }
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    (root / "etc/pam.d/closed").chmod(0o600)
    return root


def files(layer: Path) -> set[str]:
    return {str(p.relative_to(layer)) for p in layer.rglob("*") if p.is_file()}


def test_the_package_database_is_a_layer_that_changes_with_the_packages(store: LayerStore, machine: Path) -> None:
    layer = Provision(store, machine, {}).packages
    assert layer is not None
    assert files(layer) == {
        "etc/adduser.conf",
        "etc/pam.d/su",
        "etc/passwd",
        "var/lib/dpkg/info/a.list",
        "var/lib/dpkg/status",
    }
    assert (layer / "etc/passwd").read_text().startswith("root:x:0:0:root:/root:/bin/bash\n_apt:")
    assert (layer / "var/lib/apt/lists/partial").is_dir()
    assert Provision(store, machine, {}).packages == layer
    (machine / "var/lib/dpkg/status").write_text("Package: b")
    assert Provision(store, machine, {}).packages != layer


def test_a_machine_without_dpkg_has_no_such_layer(store: LayerStore, tmp_path: Path) -> None:
    assert Provision(store, tmp_path, {}).packages is None


def test_no_password_and_no_third_party_is_lent(store: LayerStore, machine: Path) -> None:
    layer = Provision(store, machine, {}).lent(host_usr=True)
    assert files(layer) == {
        "etc/apt/keyrings/key.gpg",
        "etc/apt/sources.list",
        "etc/ssl/certs/ca-certificates.crt",
        "run/muster/apt.conf",
        "run/muster/certificates.pem",
        "usr/sbin/policy-rc.d",
    }
    assert not [name for name in files(layer) if "password" in (layer / name).read_text()]


def test_a_root_file_system_of_its_own_gets_certificates_alone(store: LayerStore, machine: Path) -> None:
    layer = Provision(store, machine, {}).lent(host_usr=False)
    assert files(layer) == {"run/muster/apt.conf", "run/muster/certificates.pem"}


def test_the_environment_names_certificates_and_the_hosts_indexes(store: LayerStore, machine: Path) -> None:
    provision = Provision(store, machine, {"PIP_INDEX_URL": "https://index.example.org", "SECRET": "x"})
    env = provision.env(host_usr=False)
    assert env["PIP_INDEX_URL"] == "https://index.example.org"
    assert env["PIP_CERT"] == env["SSL_CERT_FILE"] == "/run/muster/certificates.pem"
    assert "SECRET" not in env
    assert "PIP_BREAK_SYSTEM_PACKAGES" not in env
    assert provision.env(host_usr=True)["PIP_BREAK_SYSTEM_PACKAGES"] == "1"


def test_without_a_bundle_no_certificate_is_named(store: LayerStore, tmp_path: Path) -> None:
    provision = Provision(store, tmp_path, {})
    assert "PIP_CERT" not in provision.env(host_usr=True)
    assert "run/muster/certificates.pem" not in files(provision.lent(host_usr=True))
