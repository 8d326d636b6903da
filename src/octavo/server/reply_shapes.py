"""The shapes of what endpoints answer: JSON schemas that name every member of a reply.

They lie in ``reply_shapes.json`` as the components of the OpenAPI document.
"""

from __future__ import annotations

import json
from importlib.resources import files

from octavo.text.shapes import Shape

COMPONENTS: dict[str, Shape] = json.loads(
    files("octavo.server").joinpath("reply_shapes.json").read_text(encoding="utf-8")
)
