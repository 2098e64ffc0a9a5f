"""Keys derived from the installation's one secret: a name for each purpose, so that no two purposes share a key."""

from __future__ import annotations

import hashlib
import hmac

from django.conf import settings


def derived_key(purpose: str) -> bytes:
    """32 bytes."""
    return hmac.digest(settings.SECRET_KEY.encode(), f"brigade:{purpose}".encode(), hashlib.sha256)
