"""What small faults there are: every node of a module that may be changed, and into what.

Comparisons, operators, conditions, small constants and effects are changed one at a time.
Assertions, annotations, docstrings and texts are left alone.
"""

from __future__ import annotations

import ast
import copy
import inspect
from collections.abc import Iterator
from types import CodeType

COMPARE = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
BINARY = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.BitOr: ast.BitAnd,
}  # fmt: skip
Path_ = tuple[tuple[str, int], ...]


def children(node: ast.AST) -> Iterator[tuple[str, int, ast.AST]]:
    """Every child but those that are no behaviour: assertions, annotations, texts."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for index, item in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(item, ast.AST) and not _is_no_behaviour(item):
                yield name, index, item


def _is_no_behaviour(node: ast.AST) -> bool:
    is_import = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    return is_import or isinstance(node, ast.Assert | ast.JoinedStr)


def places(node: ast.AST, path: Path_ = ()) -> Iterator[tuple[Path_, ast.AST]]:
    """Every node that may be changed, and the way to it."""
    for name, index, child in children(node):
        way = (*path, (name, index))
        yield way, child
        yield from places(child, way)


def mutants_of(node: ast.AST) -> list[tuple[str, ast.AST]]:
    """What a node may become, with a word on the change."""
    made = [*_changed(node), *_dropped(node)]
    return [(word, ast.copy_location(new, node)) for word, new in made]


def _changed(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARE:
            yield "comparison", _with(node, ops=[COMPARE[type(op)]()])
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in BINARY:
            yield "operator", _with(node, op=BINARY[type(op)]())
        case ast.BoolOp(op=op):
            yield "and/or", _with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield "unary dropped", operand
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield "condition negated", _with(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.Constant(value=bool() as value):
            yield "constant", _with(node, value=not value)
        case ast.Constant(value=int() as value):
            yield "constant", _with(node, value=value + 1)


def _dropped(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node, ast.Continue):
        yield "continue", ast.Break()
    is_value = isinstance(node, ast.Return) and node.value is not None
    if is_value and ast.unparse(node) != "return None":
        yield "return None", _with(node, value=ast.Constant(None))
    is_effect = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    if is_effect or isinstance(node, ast.AugAssign | ast.Delete) or _stores(node):
        yield "effect dropped", ast.Pass()


def _with(node: ast.AST, **changes: object) -> ast.AST:
    new = copy.deepcopy(node)
    for name, value in changes.items():
        setattr(new, name, value)
    return new


def _stores(node: ast.AST) -> bool:
    """Whether a statement assigns to an attribute or an item."""
    return isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets
    )


def compiled(tree: ast.Module, path: Path_, new: ast.AST, *, file: str) -> CodeType:
    """The code of ``tree`` with the node at ``path`` exchanged; the tree stays as it is."""
    node: ast.AST = tree
    for name, index in path[:-1]:
        value = getattr(node, name)
        node = value[index] if isinstance(value, list) else value
    name, index = path[-1]
    value = getattr(node, name)
    holder, key = (value, index) if isinstance(value, list) else (vars(node), name)
    old, holder[key] = holder[key], ast.fix_missing_locations(new)
    code = compile(tree, file, "exec")
    holder[key] = old
    return code


def header(node: ast.stmt) -> range:
    """The lines of a statement, without those of the statements inside it."""
    body = getattr(node, "body", None)
    end = body[0].lineno - 1 if body else node.end_lineno or node.lineno
    return range(node.lineno, max(node.lineno, end) + 1)


def functions_of(code: CodeType) -> dict[str, CodeType]:
    """Every function of a module's code that is called from outside it, by qualified name."""
    found: dict[str, CodeType] = {}
    for const in code.co_consts:
        if isinstance(const, CodeType):
            is_body = const.co_flags & inspect.CO_NEWLOCALS
            found |= {const.co_qualname: const} if is_body else functions_of(const)
    return found


def import_time(code: CodeType) -> list[object]:
    """What a module or class does when it is imported, without what its functions do."""
    seen: list[object] = [code.co_code, code.co_names]
    for const in code.co_consts:
        if not isinstance(const, CodeType):
            seen.append((type(const), const))
        elif const.co_flags & inspect.CO_NEWLOCALS:
            seen.append((const.co_qualname, const.co_freevars))
        else:
            seen.append(import_time(const))
    return seen
