"""The REST protocol of TensorFlow Serving: `/v1/models/...`."""

import base64
import binascii
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from keras_transformer.serving.bodies import json_object, run
from keras_transformer.serving.errors import RequestError, shown
from keras_transformer.serving.signature import Signature, Spec, to_json

VERSION = "1"
MODEL_PATHS = ("/v1/models/{name}/versions/{version}", "/v1/models/{name}")
DTYPES = {
    "string": "DT_STRING",
    "float32": "DT_FLOAT",
    "int32": "DT_INT32",
    "int64": "DT_INT64",
    "bool": "DT_BOOL",
}


async def status(request: Request) -> JSONResponse:
    """Answers whether the model can be called."""
    if request.url.path.endswith(":predict"):  # a GET of the path that POST has
        raise HTTPException(405, headers={"Allow": "POST"})
    _check_model(request)
    state = "AVAILABLE" if request.app.state.engine.is_ready else "UNLOADING"
    fine = {"error_code": "OK", "error_message": ""}
    return JSONResponse(
        {"model_version_status": [{"version": VERSION, "state": state, "status": fine}]}
    )


async def metadata(request: Request) -> JSONResponse:
    """Answers the signatures."""
    name = _check_model(request)
    signatures = request.app.state.engine.model.signatures
    described = {key: _described(signature) for key, signature in signatures.items()}
    return JSONResponse(
        {
            "model_spec": {"name": name, "signature_name": "", "version": VERSION},
            "metadata": {"signature_def": {"signature_def": described}},
        }
    )


async def predict(request: Request) -> JSONResponse:
    """Answers a call of a signature by rows (`instances`) or by columns (`inputs`)."""
    _check_model(request)
    engine = request.app.state.engine
    body = await json_object(request)
    if ("instances" in body) == ("inputs" in body):
        raise RequestError(
            400,
            "The body must have `instances`, a list of rows, or `inputs`, the columns. "
            f"Received: {shown(sorted(body))}",
        )
    name = body.get("signature_name") or "serving_default"
    signature = engine.model.signature(name)
    by_row = "instances" in body
    if by_row:
        values = _columns_of_rows(signature, body["instances"], engine.limits)
    else:
        values = _columns(signature, body)
    engine.limits.check(signature, values)  # before all of them are decoded
    outputs = await run(request, name, {key: _decoded(value) for key, value in values.items()})
    plain = {key: to_json(array) for key, array in outputs.items()}
    request.state.rows = len(next(iter(plain.values())))
    answer: Any = plain
    if len(plain) == 1:
        (answer,) = plain.values()
    elif by_row:
        answer = [dict(zip(plain, row, strict=True)) for row in zip(*plain.values(), strict=True)]
    return JSONResponse({"predictions" if by_row else "outputs": answer})


def _check_model(request):
    """Returns the name of the model, unless the path has another, or another version."""
    version = request.path_params.get("version", VERSION)
    if version != VERSION:
        raise RequestError(404, f"The model has the version {VERSION}. Received: {shown(version)}")
    name, received = request.app.state.engine.model.name, request.path_params["name"]
    if received != name:
        raise RequestError(404, f"The model is called {name!r}. Received: {shown(received)}")
    return name


def _columns(signature, body):
    if isinstance(body["inputs"], dict) and not _is_bytes(body["inputs"]):
        return body["inputs"]
    return {_only_input(signature): body["inputs"]}


def _columns_of_rows(signature, rows, limits):
    """A row is an object, or the value of the only input."""
    if not isinstance(rows, list):
        raise RequestError(400, f"`instances` must be a list. Received: {shown(rows)}")
    limits.check_lines(len(rows))
    if not rows:
        return {name: [] for name in signature.inputs if name not in signature.defaults}
    named = [row for row in rows if isinstance(row, dict) and not _is_bytes(row)]
    if not named:
        return {_only_input(signature): rows}
    if len(named) < len(rows) or any(row.keys() != rows[0].keys() for row in rows):
        raise RequestError(400, "All elements of `instances` must have the same names.")
    return {name: [row[name] for row in rows] for name in rows[0]}


def _only_input(signature):
    required = [name for name in signature.inputs if name not in signature.defaults]
    if len(required) > 1:
        raise RequestError(400, f"Name the inputs of {signature.name!r}: {required}.")
    return required[0]


def _is_bytes(value):
    return isinstance(value, dict) and value.keys() == {"b64"}


def _decoded(value):
    """Replaces `{"b64": ...}` by bytes in a list; text is never nested deeper."""
    if isinstance(value, list):
        return [one if isinstance(one, list) else _decoded(one) for one in value]
    if not _is_bytes(value):
        return value
    try:
        return base64.b64decode(value["b64"], validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise RequestError(400, f"`b64` must be base64. Received: {shown(value['b64'])}") from error


def _described(signature: Signature) -> dict[str, Any]:
    return {
        "inputs": {name: _tensor(name, spec) for name, spec in signature.inputs.items()},
        "outputs": {name: _tensor(name, spec) for name, spec in signature.outputs.items()},
        "method_name": "tensorflow/serving/predict",
    }


def _tensor(name: str, spec: Spec) -> dict[str, Any]:
    dimensions = [{"size": str(size), "name": ""} for size in spec.shape]
    shape = {"dim": dimensions, "unknown_rank": False}
    return {"dtype": DTYPES[spec.dtype], "tensor_shape": shape, "name": name}


routes = [
    *(Route(f"{path}:predict", predict, methods=["POST"]) for path in MODEL_PATHS),
    *(Route(f"{path}/metadata", metadata) for path in MODEL_PATHS),
    *(Route(path, status) for path in reversed(MODEL_PATHS)),
]
