"""Makes the graph of a SavedModel smaller: short names of operations, no recorded shapes.

Both are for people who read the graph. Half of a small model's graph is the names of scopes, which
each operation repeats for each of its inputs.
"""

from pathlib import Path

from tensorflow.core.protobuf.saved_model_pb2 import SavedModel


def compact_saved_model(folder: Path) -> None:
    """Rewrites the graph of a SavedModel; its functions compute the same."""
    file = folder / "saved_model.pb"
    saved = SavedModel.FromString(file.read_bytes())
    for meta_graph in saved.meta_graphs:
        for node in meta_graph.graph_def.node:
            node.attr.pop("_output_shapes", None)
        for function in meta_graph.graph_def.library.function:
            # The others are called from Python, which knows the names of their arguments.
            is_inner = function.signature.name not in meta_graph.object_graph_def.concrete_functions
            _shorten_names(function, is_inner)
            _drop_attributes(function)
    file.write_bytes(saved.SerializeToString(deterministic=True))
    # Optional; it is the hash of the graph as it was.
    (folder / "fingerprint.pb").unlink(missing_ok=True)


def _shorten_names(function, is_inner):
    """Renames the nodes of a `FunctionDef`, and with `is_inner` its arguments and results."""
    signature = function.signature
    short = {node.name: f"n{number}" for number, node in enumerate(function.node_def)}
    results = {one.name: one.name for one in signature.output_arg}
    if is_inner:
        short |= {one.name: f"a{number}" for number, one in enumerate(signature.input_arg)}
        results = {name: f"r{number}" for number, name in enumerate(results)}

    def renamed(reference):
        """A reference is `argument`, `node:output:index` or `^node`."""
        mark = "^" if reference.startswith("^") else ""
        name, *output = reference.removeprefix("^").split(":")
        return mark + ":".join([short.get(name, name), *output])

    for node in function.node_def:
        node.name = short[node.name]
        node.input[:] = map(renamed, node.input)
        node.ClearField("experimental_debug_info")
    for argument in signature.input_arg:
        argument.name = short.get(argument.name, argument.name)
    for result in signature.output_arg:
        result.name = results[result.name]
    returned = {results[name]: renamed(reference) for name, reference in function.ret.items()}
    controls = {short.get(name, name): short[node] for name, node in function.control_ret.items()}
    for field, names in ((function.ret, returned), (function.control_ret, controls)):
        field.clear()
        field.update(names)
    signature.control_output[:] = controls


def _drop_attributes(function):
    """Drops recorded shapes, and the names of gradients, which a SavedModel does not have."""
    for owner in (*function.node_def, *function.arg_attr.values()):
        for name in ("_output_shapes", "_gradient_op_type"):
            owner.attr.pop(name, None)
