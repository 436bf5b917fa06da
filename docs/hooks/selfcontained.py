"""No built page loads anything from elsewhere: a reader without a network sees what everybody sees.

Law: a link may lead anywhere; a script, a style, a font or an image is ours. A page that breaks it is a warning, and
warnings end the build.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig

_LOADED = re.compile(
    r"<(?:script|img|iframe|source|video)[^>]*\ssrc=[\"']?((?:https?:)?//[^\"'\s>]+)"
    r"|<link[^>]*rel=[\"']?(?:stylesheet|preconnect|preload|icon)[^>]*href=[\"']?((?:https?:)?//[^\"'\s>]+)"
    r"|@import\s+(?:url\()?[\"']?((?:https?:)?//[^\"')\s]+)"
)
_log = logging.getLogger("mkdocs.hooks.selfcontained")


def on_post_build(config: MkDocsConfig) -> None:
    site = Path(config.site_dir)
    for path in sorted([*site.rglob("*.html"), *site.rglob("*.css")]):
        for match in _LOADED.finditer(path.read_text(encoding="utf-8")):
            _log.warning("%s loads %s", path.relative_to(site), next(g for g in match.groups() if g))
