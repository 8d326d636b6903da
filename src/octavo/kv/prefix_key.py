"""What must be equal before one sequence may read KV that another computed.

Equal tokens do not prove equal KV. The key binds everything else that the numbers depend on, and
the domain in which sharing is allowed. Fields are length-prefixed and tagged by name, so equal
strings in different fields, or text moved across a boundary, give different digests.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields

SCHEMA = "octavo-kv-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixKey:
    """Everything but the tokens. ``layout`` names block size, groups and windows."""

    model_digest: str
    adapter: str
    tokenizer_digest: str
    rope: str
    fingerprint: str
    kv_dtype: str
    layout: str
    tenant: str
    domain: str
    schema: str = SCHEMA

    def digest(self) -> bytes:
        """256 bits that name the root of the prefix trie."""
        hasher = hashlib.sha256(b"octavo.kv.prefix-root")
        for name in _NAMES:
            for part in (name, getattr(self, name)):
                data = part.encode("utf-8", "surrogatepass")
                hasher.update(len(data).to_bytes(8, "little") + data)
        return hasher.digest()


_NAMES = tuple(field.name for field in fields(PrefixKey))
