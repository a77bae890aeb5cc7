"""Prints the lines of code of each folder of the package, and those of the tests and benchmarks.

    python scripts/count_lines.py

Docstrings, comments and blank lines are not counted.
"""

import ast
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[1]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def code_length(node, lines):
    """Counts the lines of code of a module, class or function.

    Args:
        node: its syntax tree.
        lines: the lines of the whole file.
    """
    is_module = isinstance(node, ast.Module)
    first, last = (1, len(lines)) if is_module else (node.lineno, node.end_lineno)
    documented = (ast.Module, ast.ClassDef, *FUNCTIONS)
    docstrings = [
        n.body[0] for n in ast.walk(node) if isinstance(n, documented) and ast.get_docstring(n)
    ]
    left_out = {n for d in docstrings for n in range(d.lineno, d.end_lineno + 1)}
    code = (n for n in range(first, last + 1) if n not in left_out)
    return sum(bool(lines[n - 1].split("#")[0].strip()) for n in code)


def lines_of_files(paths):
    """Returns the lines of code of all these files together."""
    sources = [path.read_text("utf-8") for path in paths]
    return sum(code_length(ast.parse(source), source.splitlines()) for source in sources)


def print_table():
    package = ROOT / "keras_transformer"
    folders = sorted(path.parent for path in package.glob("*/__init__.py"))
    counts = {folder.name: lines_of_files(folder.rglob("*.py")) for folder in folders}
    counts["top level"] = lines_of_files(package.glob("*.py"))
    counts["package"] = sum(counts.values())
    for name in ("tests", "benchmarks", "scripts"):
        counts[name] = lines_of_files((ROOT / name).rglob("*.py"))
    for name, count in counts.items():
        print(f"{name:<12}{count:>8,}")


if __name__ == "__main__":
    print_table()
