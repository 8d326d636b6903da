"""JSON schemas of the kinds that applications send: some by hand, the rest drawn by a seed.

A drawn schema has one of a few realistic outlines (an API's answer, a form, settings, a tool's
arguments, an event, an extraction, a tree) and fields whose kinds, limits and keywords vary.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

Schema = dict[str, Any]

_BY_HAND = Path(__file__).parent / "data" / "schemas.json"

TEXTS = ("name", "title", "city", "country", "street", "author", "subject", "label", "company",
         "department", "nickname", "summary", "comment", "reason", "brand")  # fmt: skip
NUMBERS = ("price", "weight", "score", "latitude", "ratio", "temperature", "amount", "rating",
           "confidence", "duration_s")  # fmt: skip
COUNTS = ("age", "quantity", "count", "page", "year", "retries", "port", "floor", "points", "stock")
FLAGS = ("active", "verified", "in_stock", "urgent", "public", "dry_run", "admin", "archived")
LISTS = ("tags", "items", "keywords", "scores", "steps", "aliases", "members", "attachments")
OBJECTS = ("address", "owner", "details", "profile", "limits", "metadata", "contact", "location")
WORDS = {
    "status": ["open", "pending", "closed"],
    "priority": ["low", "medium", "high", "urgent"],
    "color": ["red", "green", "blue", "black", "white"],
    "currency": ["EUR", "USD", "GBP", "JPY", "CHF"],
    "unit": ["kg", "g", "lb"],
    "sentiment": ["positive", "neutral", "negative"],
    "role": ["admin", "editor", "viewer"],
    "weekday": ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"],
    "size": ["S", "M", "L", "XL"],
    "language": ["en", "de", "fr", "ja", "pt-BR"],
}
PATTERNS = {
    "sku": r"^[A-Z]{3}-[0-9]{4}$",
    "zip": r"^[0-9]{5}(-[0-9]{4})?$",
    "phone": r"^\+[1-9][0-9]{6,12}$",
    "hex_color": r"^#[0-9a-fA-F]{6}$",
    "version": r"^(0|[1-9][0-9]{0,2})\.(0|[1-9][0-9]{0,2})\.(0|[1-9][0-9]{0,2})$",
    "slug": r"^[a-z0-9]{1,12}(-[a-z0-9]{1,12}){0,3}$",
    "country_code": r"^[A-Z]{2}$",
    "plate": r"^[A-Z]{1,3}-[A-Z]{1,2} [0-9]{1,4}$",
    "ticket": r"^(BUG|FEAT|DOC)-[1-9][0-9]{0,4}$",
    "isbn": r"^97[89]-[0-9]{10}$",
}
FORMATS = {
    "created_at": "date-time",
    "birthday": "date",
    "opens_at": "time",
    "email": "email",
    "id": "uuid",
    "host_ip": "ipv4",
    "homepage": "uri",
    "host": "hostname",
}
# Of any length unless told, which a small model takes at its word.
OPEN_FORMATS = {"created_at", "opens_at", "email", "homepage", "host"}


class Draw:
    """Draws one schema; ``defs`` become its ``$defs``."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.defs: dict[str, Schema] = {}

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    # -- leaves: (usual name, schema) -----------------------------------------------------------

    def text(self) -> tuple[str, Schema]:
        schema: Schema = {"type": "string"}
        if self.chance(0.95):
            schema["maxLength"] = self.rng.choice((20, 40, 80))
        if self.chance(0.3):
            schema["minLength"] = self.rng.choice((1, 2, 3))
        if self.chance(0.3):
            schema["description"] = "As a person would write it."
        return self.rng.choice(TEXTS), schema

    def integer(self) -> tuple[str, Schema]:
        low = self.rng.choice((0, 1, -10, 1900))
        schema: Schema = {"type": "integer", "minimum": low}
        if self.chance(0.7):
            schema["maximum"] = low + self.rng.choice((4, 99, 150, 65535))
        if self.chance(0.15) and schema.get("maximum") != low + 4:
            schema["multipleOf"] = self.rng.choice((2, 5, 10))
        if self.chance(0.2):
            schema["exclusiveMinimum"] = schema.pop("minimum")
        return self.rng.choice(COUNTS), schema

    def number(self) -> tuple[str, Schema]:
        schema: Schema = {"type": "number"}
        if self.chance(0.8):
            schema |= {"minimum": self.rng.choice((0, -90, 0.5)),
                       "maximum": self.rng.choice((1, 90, 1000))}  # fmt: skip
        elif self.chance(0.5):
            schema["exclusiveMinimum"] = 0
        if self.chance(0.6):
            schema["multipleOf"] = self.rng.choice((0.01, 0.1, 0.5))
        return self.rng.choice(NUMBERS), schema

    def flag(self) -> tuple[str, Schema]:
        return self.rng.choice(FLAGS), {"type": "boolean"}

    def word(self) -> tuple[str, Schema]:
        name = self.rng.choice(list(WORDS))
        schema: Schema = {"enum": WORDS[name]}
        return name, {"type": "string", **schema} if self.chance(0.7) else schema

    def pattern(self) -> tuple[str, Schema]:
        name = self.rng.choice(list(PATTERNS))
        return name, {"type": "string", "pattern": PATTERNS[name]}

    def format(self) -> tuple[str, Schema]:
        name = self.rng.choice(list(FORMATS))
        schema: Schema = {"type": "string", "format": FORMATS[name]}
        if name in OPEN_FORMATS:
            schema["maxLength"] = 40
        return name, schema

    def constant(self) -> tuple[str, Schema]:
        return "kind", {"const": self.rng.choice(["v1", "invoice", 3, True, None])}

    def nullable(self) -> tuple[str, Schema]:
        name, schema = self.rng.choice((self.text, self.integer, self.number, self.format))()
        if self.chance(0.5):
            return name, {"anyOf": [schema, {"type": "null"}]}
        return name, {**schema, "type": [schema["type"], "null"]}

    def leaf(self) -> tuple[str, Schema]:
        kinds = (self.text, self.text, self.integer, self.number, self.flag, self.word,
                 self.word, self.pattern, self.format, self.constant, self.nullable)  # fmt: skip
        return self.rng.choice(kinds)()

    # -- what holds others ----------------------------------------------------------------------

    def array(self, depth: int) -> tuple[str, Schema]:
        name = self.rng.choice(LISTS)
        if self.chance(0.15):
            items = [self.leaf()[1] for _ in range(self.rng.randint(2, 3))]
            size = len(items)
            tuple_of = {"prefixItems": items, "items": False, "minItems": size, "maxItems": size}
            return name, {"type": "array", **tuple_of}
        item = self.object(depth - 1)[1] if depth > 0 and self.chance(0.4) else self.leaf()[1]
        schema: Schema = {"type": "array", "items": item}
        if self.chance(0.95):
            schema["maxItems"] = self.rng.choice((2, 3, 5))
        if self.chance(0.3):
            schema["minItems"] = self.rng.choice((1, 2))
        return name, schema

    def mapping(self) -> tuple[str, Schema]:
        """An object whose keys are the model's."""
        schema: Schema = {"type": "object", "additionalProperties": self.word()[1]}
        schema["properties"] = {"default": {"type": "string", "maxLength": 12}}
        schema |= {"required": ["default"], "maxProperties": 4}
        return "labels", schema

    def union(self, depth: int) -> tuple[str, Schema]:
        """Objects told apart by a constant."""
        kinds = self.rng.sample(["card", "transfer", "cash", "voucher", "email", "sms"], 2)
        key = self.rng.choice(("anyOf", "oneOf"))
        options = []
        for kind in kinds:
            schema = self.object(depth - 1, size=2)[1]
            schema["properties"] = {"type": {"const": kind}, **schema["properties"]}
            schema["required"] = ["type", *schema.get("required", ())]
            options.append(schema)
        return "method", {key: options}

    def shared(self, depth: int) -> tuple[str, Schema]:
        """A definition by reference."""
        name = self.rng.choice(("Money", "Person", "Point", "Address"))
        if name not in self.defs:
            self.defs[name] = {}
            self.defs[name] = self.object(depth - 1, size=2)[1]
        return name.lower(), {"$ref": f"#/$defs/{name}"}

    def merged(self) -> tuple[str, Schema]:
        """Two lists of demands on one object."""
        first, second = self.object(0, size=2)[1], self.object(0, size=2)[1]
        for part in (first, second):
            part.pop("additionalProperties", None)
        second["properties"] = {f"b_{k}": v for k, v in second["properties"].items()}
        first["required"] = list(first["properties"])
        second["required"] = list(second["properties"])
        return "combined", {"allOf": [first, second], "maxProperties": 4}

    def value(self, depth: int) -> tuple[str, Schema]:
        if depth <= 0 or self.chance(0.6):
            return self.leaf()
        kinds: list[Callable[[], tuple[str, Schema]]] = [
            lambda: self.array(depth),
            lambda: self.array(depth),
            lambda: self.object(depth - 1),
            lambda: self.object(depth - 1),
            lambda: self.union(depth),
            lambda: self.shared(depth),
            self.mapping,
            self.merged,
        ]
        return self.rng.choice(kinds)()

    def object(self, depth: int, *, size: int = 0) -> tuple[str, Schema]:
        properties: dict[str, Schema] = {}
        for _ in range(size or self.rng.randint(2, 5)):
            name, schema = self.value(depth)
            properties.setdefault(name, schema)
        schema = {"type": "object", "properties": properties}
        if self.chance(0.8):
            schema["required"] = [name for name in properties if self.chance(0.85)]
        if self.chance(0.97):
            schema["additionalProperties"] = False
        return self.rng.choice(OBJECTS), schema


def _answer(draw: Draw) -> Schema:
    rows = {"type": "array", "items": draw.object(1)[1], "minItems": 1, "maxItems": 3}
    page = {"type": "integer", "minimum": 1, "maximum": 100}
    return _object(data=rows, page=page, has_more={"type": "boolean"})


def _form(draw: Draw) -> Schema:
    schema = draw.object(1, size=6)[1]
    schema["required"] = list(schema["properties"])
    return schema | {"additionalProperties": False, "title": "Form"}


def _settings(draw: Draw) -> Schema:
    sections = {name: draw.object(1, size=3)[1] for name in ("server", "logging", "storage")}
    return _object(**sections)


def _tool(draw: Draw) -> Schema:
    name = draw.rng.choice(("search", "book_flight", "send_mail", "create_ticket"))
    return _object(name={"const": name}, arguments=draw.object(1)[1])


def _event(draw: Draw) -> Schema:
    payload = draw.union(1)[1]
    stamp = {"type": "string", "format": "date-time", "maxLength": 40}
    return _object(event={"enum": ["created", "changed", "removed"]}, at=stamp, payload=payload)


def _extraction(draw: Draw) -> Schema:
    entity = _object(text={"type": "string", "maxLength": 30},
                     label={"enum": ["person", "place", "date", "other"]},
                     confidence={"type": "number", "minimum": 0, "maximum": 1})  # fmt: skip
    draw.defs["Entity"] = entity
    entities = {"type": "array", "items": {"$ref": "#/$defs/Entity"}, "maxItems": 4}
    return _object(entities=entities, note=draw.text()[1], **dict([draw.leaf()]))


def _tree(draw: Draw) -> Schema:
    """A node whose children are nodes."""
    name, leaf = draw.leaf()
    children = {"type": "array", "items": {"$ref": "#/$defs/Node"}, "maxItems": 2}
    draw.defs["Node"] = {
        **_object(value={"type": "string", "maxLength": 12}, **{name: leaf}, children=children),
        "required": ["value", name],
    }
    return {"$ref": "#/$defs/Node"}


def _object(**properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


FLAT = (_answer, _form, _settings, _tool, _event, _extraction)
OUTLINES = (*FLAT, *FLAT, *FLAT[:2], _tree)


def drawn_schema(seed: int) -> Schema:
    """The schema of a seed."""
    draw = Draw(seed)
    schema = OUTLINES[seed % len(OUTLINES)](draw)
    return {**schema, "$defs": draw.defs} if draw.defs else schema


def schemas_by_hand() -> dict[str, Schema]:
    """Name → schema."""
    return json.loads(_BY_HAND.read_text(encoding="utf-8"))


def all_schemas(num_drawn: int) -> dict[str, Schema]:
    """Name → schema: those by hand, and ``num_drawn`` drawn ones."""
    drawn = {f"drawn {seed}": drawn_schema(seed) for seed in range(num_drawn)}
    return {**schemas_by_hand(), **drawn}
