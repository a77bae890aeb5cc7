"""The rules of the folders: which folder may import which, and how long a file may be."""

import ast
import pathlib
import re

from scripts.count_lines import FUNCTIONS, code_length

PACKAGE = pathlib.Path(__file__).resolve().parents[1] / "keras_transformer"

# {folder: the folders and top-level files that it may import}. A folder may import only folders of
# earlier rows, so no cycle is possible. Top-level files import only `types` and
# `lazy_names`, as every file may; `__main__` also `cli`.
FOLDERS = {
    "layers": "tensor_shape",
    "data": "atomic_file texts settings cores lock",
    "training": "layers atomic_file evaluation present_weights processor program_cache "
    "tensor_shape",
    "models": "layers training settings tensor_shape",
    "decoding": "data atomic_file settings texts cores present_weights processor tensor_shape",
    "export": "layers data decoding atomic_file present_weights",
    "runs": "layers data training models decoding settings atomic_file console evaluation "
    "texts lock processor",
    "importing": "data training models decoding runs atomic_file console texts",
    "serving": "decoding settings console texts",
    "cli": "data decoding export runs importing serving settings atomic_file console evaluation "
    "plotting texts cores lock processor",
}
# CONTRIBUTING.md says why.
BACKEND_FILES = (
    "layers/arguments.py",
    "layers/dropout.py",
    "layers/layer_normalization.py",
    "layers/positional_encoding.py",
)

FILES = sorted(PACKAGE.rglob("*.py"))


def relative(path):
    return path.relative_to(PACKAGE).as_posix()


def folder_of(path):
    first, *rest = path.relative_to(PACKAGE).parts
    return first if rest else None


def imported_modules(tree):
    """Yields the full names of imported modules, and of names imported from modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "use an absolute import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported_parts(path):
    """Yields the folders and top-level files of the package that a file imports."""
    for name in imported_modules(ast.parse(path.read_text())):
        package, _, rest = name.partition(".")
        if package == PACKAGE.name:
            yield rest.partition(".")[0]


def test_table_has_every_folder_and_imports_have_one_direction():
    assert set(FOLDERS) == {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    above = {path.stem for path in PACKAGE.glob("*.py")}
    for folder, allowed in FOLDERS.items():
        assert set(allowed.split()) <= above, folder
        above.add(folder)


def test_contributing_shows_the_same_table():
    text = (PACKAGE.parent / "CONTRIBUTING.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `(\w+)/` \| .+ \|(.*)\|$", text, flags=re.MULTILINE))
    shown = {folder: set(re.findall(r"`(\w+)`", cell)) for folder, cell in rows.items()}
    assert shown == {folder: set(allowed.split()) for folder, allowed in FOLDERS.items()}


def test_files_import_only_what_their_folder_may():
    wrong = {}
    for path in FILES:
        folder = folder_of(path)
        allowed = {folder, "__version__", "types", "lazy_names", *FOLDERS.get(folder, "").split()}
        allowed |= {"cli"} if relative(path) == "__main__.py" else set()
        if others := set(imported_parts(path)) - allowed:
            wrong[relative(path)] = others
    assert not wrong, "imports that the row of the folder in `FOLDERS` does not allow"


def test_no_import_goes_round():
    """Imports inside functions count too."""
    imports = {}
    for path in FILES:
        names = {name.rpartition(".")[0] for name in imported_modules(ast.parse(path.read_text()))}
        names |= {*imported_modules(ast.parse(path.read_text()))}
        files = {PACKAGE.parent / f"{name.replace('.', '/')}.py" for name in names}
        imports[path] = files & {*FILES}
    while leaves := {path for path, files in imports.items() if not files}:
        imports = {p: files - leaves for p, files in imports.items() if p not in leaves}
    assert not imports, "files that import each other, or are imported by such"


def test_layers_and_models_are_plain_keras():
    backends = {"tensorflow", "tensorflow_text", "jax", "torch"}
    wrong = {}
    for path in FILES:
        if folder_of(path) in ("layers", "models") and (relative(path) not in BACKEND_FILES):
            names = imported_modules(ast.parse(path.read_text()))
            if found := backends & {name.partition(".")[0] for name in names}:
                wrong[relative(path)] = found
            elif "config.backend()" in path.read_text():
                wrong[relative(path)] = "config.backend()"
    assert not wrong
    text = (PACKAGE.parent / "CONTRIBUTING.md").read_text("utf-8")
    assert all(f"`{name}`, because" in " ".join(text.split()) for name in BACKEND_FILES)


def test_files_and_functions_stay_short():
    wrong = [f"{relative(path)}: {what}" for path in FILES for what in too_long(path)]
    assert not wrong, "\n".join(wrong)


def too_long(path):
    """Yields the limits that a file exceeds."""
    source = path.read_text()
    tree, lines = ast.parse(source), source.splitlines()
    if code_length(tree, lines) > 300:
        yield "more than 300 lines of code"
    for node in ast.walk(tree):
        is_constructor = getattr(node, "name", None) == "__init__"
        if isinstance(node, ast.Assert):
            yield f"line {node.lineno}: raise an error instead of asserting"
        if is_constructor and folder_of(path) == "layers":
            continue  # its arguments are the layer's config
        if is_constructor and len(node.args.args) > 11:
            yield f"line {node.lineno}: more than 10 arguments"
        if isinstance(node, FUNCTIONS) and code_length(node, lines) > 50:
            yield f"{node.name}: more than 50 lines of code"
