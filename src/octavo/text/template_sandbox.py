"""A place where a model's chat template may run without doing harm.

jinja2's immutable sandbox keeps a template from reaching Python. It does not keep it from using up
the machine, so here the template's tree is rewritten before it is compiled: loops, macros, string
joins and list displays report to a ``Budget``. Methods, filters and operators that can grow a
value are checked before they run, and those that templates have no use for are refused by name.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from itertools import islice
from types import BuiltinMethodType
from typing import Any, Final

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_SOURCE_CHARS: Final = 1 << 20
MAX_VALUE_CHARS: Final = 1 << 23
MAX_ITEMS: Final = 1 << 18
MAX_STEPS: Final = 1 << 18
MAX_SECONDS: Final = 5.0

# Filters and methods whose results are no larger than what goes in; others are ours, or refused.
_FILTERS: Final = (
    "abs capitalize count d default dictsort first float int items last length list lower map max "
    "min reject rejectattr reverse select selectattr sort title trim unique upper wordcount"
)
_METHODS: Final = (
    "capitalize count endswith find get index isalnum isalpha isdigit islower isspace isupper "
    "items join keys lower lstrip partition removeprefix removesuffix replace rfind rpartition "
    "rsplit rstrip split splitlines startswith strip title upper values"
)
_KNOWN_FILTERS: Final = frozenset(_FILTERS.split())
_KNOWN_METHODS: Final = frozenset(_METHODS.split())
_CONTAINERS: Final = (str, bytes, list, tuple, dict)
_PRINTABLE: Final = (*_CONTAINERS, int, float, type(None), Undefined)
_TICK: Final = "octavo_tick"
_JOIN: Final = "octavo_join"
_DISPLAY: Final = "octavo_display"


class TemplateLimitError(TemplateError):
    """A template used more than its share."""


class TemplateRefusalError(TemplateError):
    """A template called ``raise_exception``: it will not render these messages."""


class Budget:
    """What one rendering may still use. ``steps`` and the clock are both bounded."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._steps = 0
        self._deadline = clock() + MAX_SECONDS

    def spend(self, steps: int = 1) -> str:
        """Take steps; the result is empty so that a template may print it."""
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise TemplateLimitError(f"it takes more than {MAX_STEPS} steps")
        if self._clock() > self._deadline:
            raise TemplateLimitError(f"it takes longer than {MAX_SECONDS:g} s")
        return ""

    def join(self, *parts: object) -> str:
        """The ``~`` operator."""
        texts = [self.text(part) for part in parts]
        self.chars(sum(map(len, texts)))
        return "".join(texts)

    def text(self, value: object) -> str:
        """``str(value)``, after its size is known to be bounded."""
        if isinstance(value, str):
            return str(value)
        self.display(value, printed=True)
        return str(value)

    def concat(self, parts: Iterable[str]) -> str:
        """What jinja2 does with the output of a macro or a block."""
        texts = list(parts)
        self.chars(sum(map(len, texts)))
        return "".join(texts)

    def chars(self, count: int) -> None:
        """Before a string of ``count`` characters is made."""
        if count > MAX_VALUE_CHARS:
            raise TemplateLimitError(
                f"it builds a string of more than {MAX_VALUE_CHARS} characters"
            )
        self.spend(1 + (count >> 10))

    def display(self, value: Any, *, printed: bool = False) -> Any:  # noqa: ANN401
        """The value, once its full extent (shared parts counted each time) is bounded."""
        pending = [value]
        items = size = 0
        while pending:
            item = pending.pop()
            items += 1
            if isinstance(item, dict):
                pending += [*item.keys(), *item.values()]
            elif isinstance(item, list | tuple):
                pending += item
            elif isinstance(item, str):
                size += len(item)
            elif printed and not isinstance(item, _PRINTABLE):
                raise TemplateLimitError(f"it prints a {type(item).__name__}")
            if items + len(pending) > MAX_ITEMS:
                raise TemplateLimitError(f"it builds a value of more than {MAX_ITEMS} items")
        self.chars(size)
        self.spend(items >> 4)
        return value


class _GenerationTag(Extension):
    """``{% generation %}…{% endgeneration %}`` marks what a model wrote; it renders as its body."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares a set

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox of one rendering at a time: ``budget`` is set before each."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, now: Callable[[], datetime] = datetime.now) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, _GenerationTag],
            finalize=self._finalize,
        )
        self.budget = Budget()
        plain = {name: self.filters[name] for name in _KNOWN_FILTERS}
        self.filters = plain | {
            "join": self._join_filter,
            "replace": self._replace_filter,
            "safe": self._text,
            "string": self._text,
            "tojson": self.tojson,
        }
        self.binop_table = {**self.binop_table, "+": self._add, "*": self._multiply}
        self.binop_table |= {"**": _power, "%": _remainder}
        self.globals = {
            "dict": self._dict,
            "namespace": self.globals["namespace"],
            "range": self.globals["range"],
            "raise_exception": _raise_exception,
            "strftime_now": lambda form: _strftime(now(), form),
            _TICK: self._tick,
            _JOIN: self._join,
            _DISPLAY: self._display,
        }

    # jinja2 looks this name up for the output of macros and blocks.
    def concat(self, parts: Iterable[str]) -> str:
        """Join the pieces of a macro's or a block's output."""
        return self.budget.concat(parts)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _meter(tree)
        tree.set_environment(self)
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:  # noqa: ANN401
        """Attributes of basic values are limited to a list of methods."""
        if isinstance(obj, _CONTAINERS) and attr not in _KNOWN_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: object) -> None:
        """``str.format`` is not among the known methods, and not let in by another door."""

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Every call that a template makes comes by here."""
        self.budget.spend()
        if isinstance(obj, BuiltinMethodType) and isinstance(obj.__self__, str):
            if obj.__name__ == "join" and args:
                args = (list(islice(args[0], MAX_ITEMS)),)
            self._check_method(obj.__self__, obj.__name__, args)
        return super().call(context, obj, *args, **kwargs)

    def tojson(
        self,
        value: Any,  # noqa: ANN401
        *,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """JSON as chat templates expect it: not escaped for HTML."""
        self.budget.display(value)
        if isinstance(indent, int) and not 0 <= indent <= 16:
            raise TemplateLimitError("it indents JSON by more than 16")
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    def _tick(self) -> str:
        return self.budget.spend()

    def _join(self, *parts: object) -> str:
        return self.budget.join(*parts)

    def _display(self, value: Any) -> Any:  # noqa: ANN401
        return self.budget.display(value)

    def _text(self, value: object) -> str:
        return self.budget.text(value)

    def _finalize(self, value: Any) -> Any:  # noqa: ANN401
        return value if isinstance(value, str | Undefined) else self.budget.text(value)

    def _dict(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        return self.budget.display(dict(*args, **kwargs))

    def _join_filter(self, value: Any, d: str = "", attribute: Any = None) -> str:  # noqa: ANN401
        if attribute is not None:
            value = [self.getitem(item, attribute) for item in value]
        texts = [self.budget.text(item) for item in value]
        separator = self.budget.text(d)
        self.budget.chars(sum(map(len, texts)) + len(texts) * len(separator))
        return separator.join(texts)

    def _replace_filter(self, value: object, old: str, new: str, *limit: int) -> str:
        text = self.budget.text(value)
        self._check_method(text, "replace", (old, new))
        return text.replace(old, new, *limit)

    def _add(self, left: Any, right: Any) -> Any:  # noqa: ANN401
        self._check_sum(left, right)
        return left + right

    def _multiply(self, left: Any, right: Any) -> Any:  # noqa: ANN401
        self._check_product(left, right)
        return left * right

    def _check_sum(self, left: Any, right: Any) -> None:  # noqa: ANN401
        if isinstance(left, str) and isinstance(right, str):
            self.budget.chars(len(left) + len(right))
        elif isinstance(left, list | tuple):
            self.budget.display([left, right])

    def _check_product(self, left: Any, right: Any) -> None:  # noqa: ANN401
        for value, times in ((left, right), (right, left)):
            if isinstance(value, str) and isinstance(times, int):
                self.budget.chars(len(value) * max(times, 0))
            elif isinstance(value, list | tuple):
                raise TemplateLimitError("it multiplies a list, which is not supported")
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() + right.bit_length()
            if bits > 4096:
                raise TemplateLimitError("it computes a product that is too large")

    def _check_method(self, owner: str, name: str, args: tuple[Any, ...]) -> None:
        self.budget.chars(len(owner))
        if name == "replace" and len(args) >= 2:
            self.budget.chars(len(owner) + owner.count(args[0]) * len(args[1]))
        elif name == "join" and args:
            self.budget.chars(sum(map(len, args[0])) + len(args[0]) * len(owner))


def _meter(tree: nodes.Template) -> None:
    """Rewrite the tree so that whatever repeats or grows reports to the budget."""

    def call(name: str, arguments: list[nodes.Expr]) -> nodes.Call:
        return nodes.Call(nodes.Name(name, "load"), arguments, [], None, None)

    for block in list(tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock))):
        if isinstance(block, nodes.For | nodes.Macro | nodes.CallBlock):
            block.body.insert(0, nodes.ExprStmt(call(_TICK, [])))
    _replace(tree, nodes.Concat, lambda node: call(_JOIN, node.nodes))
    for display in (nodes.List, nodes.Tuple, nodes.Dict):
        _replace(tree, display, lambda node: call(_DISPLAY, [node]))


def _replace(node: nodes.Node, kind: type[Any], make: Callable[[Any], nodes.Node]) -> None:
    """Put ``make(child)`` in the place of every descendant of ``kind``, innermost first."""
    for name, value in list(node.iter_fields()):
        is_list = isinstance(value, list)
        children = value if is_list else [value]
        for child in children:
            if isinstance(child, nodes.Node):
                _replace(child, kind, make)
        replaced = [make(child) if _is_value(child, kind) else child for child in children]
        setattr(node, name, replaced if is_list else replaced[0])


def _is_value(item: object, kind: type[Any]) -> bool:
    """A tuple may also be the target of an assignment, which is to be left alone."""
    return isinstance(item, kind) and not (isinstance(item, nodes.Tuple) and item.ctx != "load")


def _power(left: Any, right: Any) -> Any:  # noqa: ANN401
    if not (abs(left) <= 1 << 32 and abs(right) <= 64):
        raise TemplateLimitError("it computes a power that is too large")
    return left**right


def _remainder(left: Any, right: Any) -> Any:  # noqa: ANN401
    if isinstance(left, str):
        raise TemplateLimitError("it formats with '%', which is not supported")
    return left % right


def _raise_exception(message: object) -> None:
    raise TemplateRefusalError(str(message)[:500])


def _strftime(now: datetime, form: str) -> str:
    if len(form) > 100 or re.search(r"%[^a-zA-Z%]*\d", form):
        raise TemplateLimitError("its date format is not supported")
    return now.strftime(form)
