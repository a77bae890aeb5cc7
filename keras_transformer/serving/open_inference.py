"""The Open Inference Protocol, version 2: `/v2/...`."""

import math
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from keras_transformer import __version__
from keras_transformer.serving.bodies import check_model_name, json_object, run
from keras_transformer.serving.errors import RequestError, shown
from keras_transformer.serving.signature import Spec, to_json

DATATYPES = {
    "string": "BYTES",
    "float32": "FP32",
    "int32": "INT32",
    "int64": "INT64",
    "bool": "BOOL",
}


async def live(request: Request) -> JSONResponse:
    """Answers that the process runs."""
    return JSONResponse({"live": True})


async def ready(request: Request) -> JSONResponse:
    """Answers whether the server takes requests."""
    is_ready = request.app.state.engine.is_ready
    return JSONResponse({"ready": is_ready}, 200 if is_ready else 503)


async def server_metadata(request: Request) -> JSONResponse:
    """Answers what the server is."""
    return JSONResponse({"name": "keras-transformer", "version": __version__, "extensions": []})


async def model_metadata(request: Request) -> JSONResponse:
    """Answers the tensors of `serving_default`."""
    name, model = check_model_name(request), request.app.state.engine.model
    signature = model.signature("serving_default")
    return JSONResponse(
        {
            "name": name,
            "versions": ["1"],
            "platform": "tensorflow_savedmodel",
            "inputs": [_described(*item) for item in signature.inputs.items()],
            "outputs": [_described(*item) for item in signature.outputs.items()],
        }
    )


async def model_ready(request: Request) -> JSONResponse:
    """Answers whether the model takes requests."""
    name, is_ready = check_model_name(request), request.app.state.engine.is_ready
    return JSONResponse({"name": name, "ready": is_ready}, 200 if is_ready else 503)


async def infer(request: Request) -> JSONResponse:
    """Answers a call of a signature, `serving_default` unless the parameters name another."""
    model_name, engine = check_model_name(request), request.app.state.engine
    body = await json_object(request)
    parameters = body.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise RequestError(400, f"`parameters` must be an object. Received: {shown(parameters)}")
    name = parameters.get("signature_name", "serving_default")
    signature = engine.model.signature(name)
    wanted = _wanted_outputs(body, signature)
    values = dict(_input(tensor, signature, engine.limits) for tensor in _list(body, "inputs"))
    found = await run(request, name, values)
    outputs = [
        {
            "name": output,
            "shape": list(found[output].shape),
            "datatype": DATATYPES[signature.outputs[output].dtype],
            "data": to_json(found[output].ravel()),
        }
        for output in wanted
    ]
    request.state.rows = outputs[0]["shape"][0]
    answer: dict[str, Any] = {"model_name": model_name, "model_version": "1", "outputs": outputs}
    if isinstance(body.get("id"), str):
        answer["id"] = body["id"].encode("utf-8", "replace").decode()
    return JSONResponse(answer)


def _list(body, name):
    """Returns a list of objects with names."""
    value = body.get(name)
    if not isinstance(value, list) or not all(
        isinstance(one, dict) and isinstance(one.get("name"), str) for one in value
    ):
        raise RequestError(
            400, f"`{name}` must be a list of objects with a `name`. Received: {shown(value)}"
        )
    return value


def _wanted_outputs(body, signature):
    wanted = [one["name"] for one in _list(body, "outputs")] if body.get("outputs") else []
    if set(wanted) - signature.outputs.keys():
        raise RequestError(
            400, f"The outputs are {sorted(signature.outputs)}. Received: {shown(wanted)}"
        )
    return wanted or list(signature.outputs)


def _input(tensor, signature, limits):
    """Returns the name of a tensor, and its data nested by its shape."""
    name, shape, data = tensor["name"], tensor.get("shape"), tensor.get("data")
    if name not in signature.inputs:
        raise RequestError(
            400, f"The inputs are {sorted(signature.inputs)}. Received: {shown(name)}"
        )
    spec = signature.inputs[name]
    expected, datatype = DATATYPES[spec.dtype], tensor.get("datatype")
    if datatype != expected:
        raise RequestError(400, f"{name!r} must be {expected}. Received: {shown(datatype)}")
    is_shape = isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)
    if not is_shape or len(shape) != len(spec.shape) or not isinstance(data, list):
        raise RequestError(
            400,
            f"{name!r} must have a `shape` of {len(spec.shape)} sizes and a list as `data`. "
            f"Received: {shown(shape)}, {shown(data)}",
        )
    limits.check_lines(shape[0])
    limits.check_lines(len(data) // max(math.prod(shape[1:]), 1))
    flat = _flat(data) if any(isinstance(one, list) for one in data) else data
    if len(flat) != math.prod(shape):
        raise RequestError(
            400, f"{name!r} has the shape {shown(shape)}. Received: {len(flat)} elements"
        )
    return name, _nested(flat, shape)


def _flat(data):
    """The protocol allows nested data, too."""
    return [one for row in data for one in (row if isinstance(row, list) else [row])]


def _nested(flat, shape):
    if len(shape) == 1:
        return flat
    rows, width = shape
    return [flat[row * width : (row + 1) * width] for row in range(rows)]


def _described(name: str, spec: Spec) -> dict[str, Any]:
    return {"name": name, "datatype": DATATYPES[spec.dtype], "shape": list(spec.shape)}


routes = [
    Route("/v2/health/live", live),
    Route("/v2/health/ready", ready),
    Route("/v2", server_metadata),
    Route("/v2/models/{name}", model_metadata),
    Route("/v2/models/{name}/ready", model_ready),
    Route("/v2/models/{name}/infer", infer, methods=["POST"]),
]
