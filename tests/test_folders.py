"""The shape of the package: which folder imports which, and how long files and functions are."""

import ast
import pathlib

import pytest

PACKAGE = pathlib.Path(__file__).resolve().parents[1] / "keras_transformer"

# Each folder, and what it may import of the package. Only folders of the rows above it stand there,
# so that no circle is possible. Files beside the folders import nothing of the package.
FOLDERS = {
    "layers": "",
    "data": "atomic_file",
    "training": "layers atomic_file evaluation",
    "models": "layers training settings",
    "decoding": "layers data settings",
    "export": "decoding atomic_file",
    "runs": "layers data training models decoding settings atomic_file console evaluation",
    "cli": "data decoding export runs settings atomic_file console evaluation plotting",
}
# What only TensorFlow has: replicas, and graphs that raise errors when they run.
FILES_THAT_KNOW_THE_BACKEND = ("layers/dropout.py", "layers/arguments.py")

FILES = sorted(PACKAGE.rglob("*.py"))


def relative(path):
    return path.relative_to(PACKAGE).as_posix()


def folder_of(path):
    first, *rest = path.relative_to(PACKAGE).parts
    return first if rest else None


def imported_modules(tree):
    """Full names: of modules, and of what is imported from them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "import by the full name"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported_parts(path):
    """The folders and top-level files of the package that a file imports."""
    for name in imported_modules(ast.parse(path.read_text())):
        package, _, rest = name.partition(".")
        if package == PACKAGE.name:
            yield rest.partition(".")[0]


def test_table_of_folders_is_complete_and_has_one_direction():
    assert set(FOLDERS) == {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    above = {path.stem for path in PACKAGE.glob("*.py")}
    for folder, allowed in FOLDERS.items():
        assert set(allowed.split()) <= above, folder
        above.add(folder)


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_file_imports_only_what_its_folder_may(path):
    folder = folder_of(path)
    allowed = {folder, "__version__", "types", *FOLDERS.get(folder, "").split()}
    assert not set(imported_parts(path)) - allowed, f"{folder} may import {allowed}"


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_layers_and_models_are_plain_keras(path):
    if folder_of(path) not in ("layers", "models") or relative(path) in FILES_THAT_KNOW_THE_BACKEND:
        return
    roots = {name.partition(".")[0] for name in imported_modules(ast.parse(path.read_text()))}
    assert not roots & {"tensorflow", "tensorflow_text", "jax", "torch"}


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_files_and_functions_stay_short(path):
    source = path.read_text()
    tree, lines = ast.parse(source), source.splitlines()
    assert code_length(tree, lines) <= 300
    assert not [n for n in ast.walk(tree) if isinstance(n, ast.Assert)], "raise an error instead"
    for node in ast.walk(tree):
        is_constructor = getattr(node, "name", None) == "__init__"
        if is_constructor and folder_of(path) == "layers":
            continue  # its arguments are the layer's config
        if is_constructor:
            assert len(node.args.args) <= 11, "more than 10 arguments"
        if isinstance(node, ast.FunctionDef):
            assert code_length(node, lines) <= 50, node.name


def code_length(node, lines):
    """Lines of code: docstrings, comments and blank lines not counted."""
    is_module = isinstance(node, ast.Module)
    first, last = (1, len(lines)) if is_module else (node.lineno, node.end_lineno)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings = [
        n.body[0] for n in ast.walk(node) if isinstance(n, documented) and ast.get_docstring(n)
    ]
    left_out = {n for d in docstrings for n in range(d.lineno, d.end_lineno + 1)}
    code = (n for n in range(first, last + 1) if n not in left_out)
    return sum(bool(lines[n - 1].split("#")[0].strip()) for n in code)
