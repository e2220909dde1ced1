"""Style rules that no linter has: sizes of files and functions, parameters, where environment variables are read.

Run from the repository's root; prints one line per breach and exits with 1 if there is any.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 8
ROOTS = ("src/moesaic", "tests", "tools", "benchmarks", "examples")
# A verb's parameters are its flags, and LLM's are vLLM's.
MANY_PARAMETERS = ("src/moesaic/cli/", "src/moesaic/api.py")
# A shell sets the environment, so the command line's rooms read it.
ENVIRONMENT = ("src/moesaic/cli/",)
NOT_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def breaches(path: str, text: str) -> Iterator[str]:
    """One line of text per broken rule in the source file `text`; `path` is relative to the repository's root."""
    num_lines = text.count("\n")
    if num_lines > MAX_FILE_LINES:
        yield f"{path}:1: {num_lines} lines, at most {MAX_FILE_LINES}"
    tree = ast.parse(text, path)
    if tree.body and not path.startswith("tests/") and ast.get_docstring(tree) is None:
        yield f"{path}:1: no docstring that says what the file is"
    code_lines = lines_with_code(text)
    for node in ast.walk(tree):
        if isinstance(node, Function):
            yield from _function_breaches(path, node, code_lines)
        elif path.startswith("src/") and not path.startswith(ENVIRONMENT) and _reads_environment(node):
            yield f"{path}:{getattr(node, 'lineno', 1)}: environment variables are read in cli only"


def lines_with_code(text: str) -> set[int]:
    """Numbers of the lines that hold more than a comment or nothing."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NOT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines


def _function_breaches(path: str, function: Function, code_lines: set[int]) -> Iterator[str]:
    where = f"{path}:{function.lineno}: {function.name}"
    body = function.body
    if ast.get_docstring(function) is not None:
        body = body[1:]
    first, last = (body[0].lineno, function.end_lineno or 0) if body else (0, 0)
    num_lines = sum(first <= line <= last for line in code_lines)
    if num_lines > MAX_FUNCTION_LINES:
        yield f"{where} has {num_lines} lines of code, at most {MAX_FUNCTION_LINES}"
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    num_parameters = sum(argument.arg not in ("self", "cls") for argument in named)
    is_test = path.startswith("tests/") and function.name.startswith("test_")  # fixtures and cases, filled by name
    if num_parameters > MAX_PARAMETERS and not is_test and not path.startswith(MANY_PARAMETERS):
        yield f"{where} has {num_parameters} parameters, at most {MAX_PARAMETERS}"


def _reads_environment(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.value.id == "os" and node.attr in ("environ", "getenv", "environb")
    return (
        isinstance(node, ast.ImportFrom)
        and node.module == "os"
        and any(n.name in ("environ", "getenv") for n in node.names)
    )


def main() -> int:
    found = [
        breach
        for root in ROOTS
        for path in sorted(Path(root).rglob("*.py"))
        for breach in breaches(path.as_posix(), path.read_text(encoding="utf-8"))
    ]
    for breach in found:
        print(breach, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
