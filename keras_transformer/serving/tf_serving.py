"""The REST protocol of TensorFlow Serving: `/v1/models/...`."""

from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from keras_transformer.serving.bodies import client_of, json_object, unless_gone
from keras_transformer.serving.errors import RequestError
from keras_transformer.serving.signature import signatures_of

PATH = "/v1/models/{name}"


async def status(request: Request) -> JSONResponse:
    """The status of the model, in TensorFlow Serving's form."""
    if request.url.path.endswith(":predict"):  # GET of the path of `predict`
        raise HTTPException(405, headers={"Allow": "POST"})
    _service(request)
    state = "AVAILABLE" if request.app.state.service.is_ready else "UNLOADING"
    no_error = {"error_code": "OK", "error_message": ""}
    version = {"version": "1", "state": state, "status": no_error}
    return JSONResponse({"model_version_status": [version]})


async def predict(request: Request) -> JSONResponse:
    """Calls a signature with rows (`instances`) or columns (`inputs`)."""
    service, body = _service(request), await json_object(request)
    by_row = "instances" in body
    if by_row == ("inputs" in body):
        must = "The body must have `instances`, a list of rows, or `inputs`, the columns."
        raise RequestError(400, must, sorted(body))
    signatures, name = signatures_of(service.translator), body.get("signature_name")
    name = name or "serving_default"
    if not isinstance(name, str) or name not in signatures:
        raise RequestError(400, f"The model has the signatures {sorted(signatures)}.", name)
    signature = signatures[name]
    if by_row:
        values = _columns(signature, body["instances"], service.limits)
    else:
        values = body["inputs"]
    if not isinstance(values, dict):
        if len(signature.required) > 1:
            raise RequestError(400, f"Name the inputs of {signature.name!r}: {signature.required}.")
        values = {signature.required[0]: values}
    outputs = await unless_gone(request, signature.run(service, values, client_of(request)))
    request.state.rows = len(next(iter(outputs.values())))
    answer: Any = outputs
    if len(outputs) == 1:
        (answer,) = outputs.values()
    elif by_row:
        rows = zip(*outputs.values(), strict=True)
        answer = [dict(zip(outputs, row, strict=True)) for row in rows]
    return JSONResponse({"predictions" if by_row else "outputs": answer})


def _service(request):
    """Returns the service, unless the path has the name of another model."""
    service, name = request.app.state.service, request.path_params["name"]
    if name != service.name:
        raise RequestError(404, f"The model is called {service.name!r}.", name)
    return service


def _columns(signature, rows, limits):
    """Returns the values of each input by its name; rows without names are returned unchanged."""
    if not isinstance(rows, list):
        raise RequestError(400, "`instances` must be a list.", rows)
    limits.check_lines(len(rows))
    if not rows:
        return {name: [] for name in signature.required}
    named_rows = [row for row in rows if isinstance(row, dict)]
    if not named_rows:
        return rows
    if len(named_rows) < len(rows) or any(row.keys() != rows[0].keys() for row in rows):
        raise RequestError(400, "All elements of `instances` must have the same names.")
    return {name: [row[name] for row in rows] for name in rows[0]}


routes = [
    Route(f"{PATH}:predict", predict, methods=["POST"]),
    Route(PATH, status),
]
