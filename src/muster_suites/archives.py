"""Archives whose bytes depend on their content alone.

Law: no time, no owner, and no compressor, whose output differs between versions: gzip members hold stored blocks,
zip members are stored.
"""

from __future__ import annotations

import io
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterable

_BLOCK_BYTES = 0xFFFF
_EPOCH = (2024, 1, 1, 0, 0, 0)

Members = Iterable[tuple[str, bytes]]


def gzip_file(data: bytes) -> bytes:
    """RFC 1952 around stored blocks of RFC 1951."""
    blocks = [data[i : i + _BLOCK_BYTES] for i in range(0, len(data), _BLOCK_BYTES)] or [b""]
    stored = b"".join(
        struct.pack("<BHH", index == len(blocks) - 1, len(block), len(block) ^ 0xFFFF) + block
        for index, block in enumerate(blocks)
    )
    return b"\x1f\x8b\x08" + bytes(6) + b"\xff" + stored + struct.pack("<II", zlib.crc32(data), len(data) & 0xFFFFFFFF)


def tar_file(members: Members) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o644
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def zip_file(members: Members) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in members:
            member = zipfile.ZipInfo(name, _EPOCH)
            member.create_system, member.external_attr = 3, 0o644 << 16
            archive.writestr(member, data)
    return out.getvalue()
