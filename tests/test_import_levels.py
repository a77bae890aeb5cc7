"""The shape of the house: who imports whom, how long files and functions are."""

import ast
import pathlib

import pytest

PACKAGE = pathlib.Path(__file__).resolve().parents[1] / "keras_transformer"
FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {p: ".".join(p.relative_to(PACKAGE).with_suffix("").parts) for p in FILES}

# From the lowest level to the highest: a file imports only from rows above its own.
LEVELS = """
settings training.workers run_lock export.folder
config decoding.search_settings
layers.arguments decoding.next_tokens
layers.masks layers.attention layers.dropout layers.projection layers.positional_embedding
    data.corpus data.number_names data.batching training.token_weights training.schedules
    evaluation plotting
    decoding.search decoding.processors decoding.hypothesis decoding.batches decoding.lines
    decoding.frozen
training.losses
layers.feed_forward layers.residual layers.multi_head_attention
    data.tokenizer data.pipeline training.metrics training.distribution
    training.token_loss training.rows training.fused_loss recipe decoding.greedy_search
layers.block run_folder console training.exact_step training.checkpoints
    decoding.beam_search decoding.long_lines
layers.encoder_block layers.decoder_block decoding.model_search
layers
models.stack
models.encoder models.decoder
models.transformer
decoding.translator
export.saved_model export.ctranslate2 training.callbacks training.progress
training.keeper training.averaging training.beginning
training.trainer training.roll_call
training.doctor
cli.options cli.translators
cli.data cli.training cli.decoding cli.evaluation cli.export
cli
"""


def levels():
    rows = LEVELS.replace("\n    ", " ").strip().splitlines()
    return {module: level for level, row in enumerate(rows) for module in row.split()}


def imports(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "."  # a relative import has no level here
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", [p for p in FILES if p.stem != "__init__"], ids=MODULES.get)
def test_file_imports_only_from_lower_levels(path):
    level = levels()
    assert MODULES[path] in level, "a new file needs a level in design section 2 and here"
    for name in imports(ast.parse(path.read_text())):
        name = name.removeprefix("keras_transformer.")
        if name in level:
            assert level[name] < level[MODULES[path]], f"{MODULES[path]} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=MODULES.get)
def test_layers_and_models_are_plain_keras(path):
    roots = {name.split(".")[0] for name in imports(ast.parse(path.read_text()))}
    # Only TensorFlow has replicas, and graphs that raise when they run.
    looks_at_the_backend = ("layers.dropout", "layers.arguments")
    if MODULES[path] in looks_at_the_backend:
        return
    if MODULES[path].startswith(("layers", "models")):
        assert not roots & {"tensorflow", "tensorflow_text", "jax", "torch"}


@pytest.mark.parametrize("path", FILES, ids=MODULES.get)
def test_files_and_functions_stay_short(path):
    source = path.read_text()
    tree, lines = ast.parse(source), source.splitlines()
    assert length(tree, lines) <= 300
    assert not [n for n in ast.walk(tree) if isinstance(n, ast.Assert)], "raise an error instead"
    for node in ast.walk(tree):
        is_constructor = getattr(node, "name", None) == "__init__"
        if is_constructor and MODULES[path].startswith("layers"):
            continue  # its arguments are the layer's config
        if is_constructor:
            assert len(node.args.args) <= 11, "more than 10 arguments"
        if isinstance(node, ast.FunctionDef):
            assert length(node, lines) <= 50, node.name


def length(node, lines):
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
