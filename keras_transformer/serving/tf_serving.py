"""The REST protocol of TensorFlow Serving: `/v1/models/...`."""

from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from keras_transformer.serving.bodies import json_object, run
from keras_transformer.serving.errors import RequestError
from keras_transformer.serving.json_text import is_base64
from keras_transformer.serving.signature import to_json

VERSION = "1"
MODEL_PATHS = ("/v1/models/{name}/versions/{version}", "/v1/models/{name}")


async def status(request: Request) -> JSONResponse:
    """Status, as TensorFlow Serving's.

    ---
    responses: {200: ModelStatus, 404: NotFound, 503: Unavailable}
    """
    if request.url.path.endswith(":predict"):  # a GET of the path that POST has
        raise HTTPException(405, headers={"Allow": "POST"})
    _check_model(request)
    state = "AVAILABLE" if request.app.state.engine.is_ready else "UNLOADING"
    fine = {"error_code": "OK", "error_message": ""}
    version = {"version": VERSION, "state": state, "status": fine}
    return JSONResponse({"model_version_status": [version]})


async def metadata(request: Request) -> JSONResponse:
    """Signatures, as TensorFlow Serving's.

    ---
    responses: {200: ModelMetadata, 404: NotFound, 503: Unavailable}
    """
    model = _check_model(request)
    described = {
        name: {
            "inputs": _tensors(signature.inputs),
            "outputs": _tensors(signature.outputs),
            "method_name": "tensorflow/serving/predict",
        }
        for name, signature in model.signatures.items()
    }
    spec = {"name": model.name, "signature_name": "", "version": VERSION}
    found = {"signature_def": {"signature_def": described}}
    return JSONResponse({"model_spec": spec, "metadata": found})


async def predict(request: Request) -> JSONResponse:
    """Call a signature, by rows (`instances`) or by columns (`inputs`), as TensorFlow Serving's.

    ---
    requestBody:
      required: true
      content:
        application/json: {schema: {$ref: "#/components/schemas/PredictRequest"}}
    responses: {200: Prediction, 404: NotFound}
    """
    model, body = _check_model(request), await json_object(request)
    by_row = "instances" in body
    if by_row == ("inputs" in body):
        must = "The body must have `instances`, a list of rows, or `inputs`, the columns."
        raise RequestError(400, must, sorted(body))
    signature = model.signature(body.get("signature_name") or "serving_default")
    if by_row:
        values = _columns(signature, body["instances"], request.app.state.engine.limits)
    else:
        values = body["inputs"]
    if not isinstance(values, dict) or is_base64(values):
        if len(signature.required) > 1:
            raise RequestError(400, f"Name the inputs of {signature.name!r}: {signature.required}.")
        values = {signature.required[0]: values}
    outputs = await run(request, signature.name, values)
    plain = {name: to_json(array) for name, array in outputs.items()}
    request.state.rows = len(next(iter(plain.values())))
    answer: Any = plain
    if len(plain) == 1:
        (answer,) = plain.values()
    elif by_row:
        answer = [dict(zip(plain, row, strict=True)) for row in zip(*plain.values(), strict=True)]
    return JSONResponse({"predictions" if by_row else "outputs": answer})


def _check_model(request):
    """Returns the model, unless the path has another name, or another version."""
    model, path = request.app.state.engine.model, {"version": VERSION, **request.path_params}
    if path["version"] != VERSION:
        raise RequestError(404, f"The model has the version {VERSION}.", path["version"])
    if path["name"] != model.name:
        raise RequestError(404, f"The model is called {model.name!r}.", path["name"])
    return model


def _columns(signature, rows, limits):
    """Returns the values of each input; or of the only one, if the rows are not objects."""
    if not isinstance(rows, list):
        raise RequestError(400, "`instances` must be a list.", rows)
    limits.check_lines(len(rows))
    if not rows:
        return {name: [] for name in signature.required}
    named = [row for row in rows if isinstance(row, dict) and not is_base64(row)]
    if not named:
        return rows
    if len(named) < len(rows) or any(row.keys() != rows[0].keys() for row in rows):
        raise RequestError(400, "All elements of `instances` must have the same names.")
    return {name: [row[name] for row in rows] for name in rows[0]}


def _tensors(specs):
    described = {}
    for name, spec in specs.items():
        dtype = {"float32": "FLOAT"}.get(spec.dtype, spec.dtype.upper())
        shape = {"dim": [{"size": str(size), "name": ""} for size in spec.shape]}
        shape["unknown_rank"] = False
        described[name] = {"dtype": f"DT_{dtype}", "tensor_shape": shape, "name": name}
    return described


routes = [
    *(Route(f"{path}:predict", predict, methods=["POST"]) for path in MODEL_PATHS),
    *(Route(f"{path}/metadata", metadata) for path in MODEL_PATHS),
    *(Route(path, status) for path in reversed(MODEL_PATHS)),
]
