"""API keys as they are given on the command line: who a key belongs to.

A key is ``NAME=KEY`` or ``KEY``; NAME is the tenant that it speaks for, "default" without one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from octavo.errors import ConfigError

DEFAULT_TENANT = "default"
ADMIN_TENANT = "admin"

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


def split_key(text: str) -> tuple[str, str]:
    """(tenant, key). The padding of a base64 key is part of the key.

    Raises:
        ConfigError: there is no key in it.
    """
    name, equals, key = text.partition("=")
    if equals and key.strip("=") and _NAME.fullmatch(name):
        return name, key
    if not text.strip():
        raise ConfigError("--api-key is empty; give KEY, or NAME=KEY", param="api_key")
    return DEFAULT_TENANT, text


def tenants_of(keys: Iterable[str]) -> dict[str, str]:
    """Key → tenant. A tenant may have several keys.

    Raises:
        ConfigError: a key is empty, or two tenants share it.
    """
    tenants: dict[str, str] = {}
    for text in keys:
        name, key = split_key(text)
        if tenants.setdefault(key, name) != name:
            raise ConfigError(
                f"--api-key: {tenants[key]} and {name} have the same key; give each its own",
                param="api_key",
            )
    return tenants
