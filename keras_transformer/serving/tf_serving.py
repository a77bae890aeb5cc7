"""The REST protocol of TensorFlow Serving: `/v1/models/...`."""

from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from keras_transformer.serving.bodies import json_object, run
from keras_transformer.serving.errors import RequestError
from keras_transformer.serving.signature import to_json

PATH = "/v1/models/{name}"


async def status(request: Request) -> JSONResponse:
    """Status, as TensorFlow Serving's."""
    if request.url.path.endswith(":predict"):  # a GET of the path that POST has
        raise HTTPException(405, headers={"Allow": "POST"})
    _check_model(request)
    state = "AVAILABLE" if request.app.state.engine.is_ready else "UNLOADING"
    fine = {"error_code": "OK", "error_message": ""}
    version = {"version": "1", "state": state, "status": fine}
    return JSONResponse({"model_version_status": [version]})


async def predict(request: Request) -> JSONResponse:
    """Call a signature, by rows (`instances`) or by columns (`inputs`), as TensorFlow Serving's."""
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
    if not isinstance(values, dict):
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
    """Returns the model, unless the path has another name."""
    model, name = request.app.state.engine.model, request.path_params["name"]
    if name != model.name:
        raise RequestError(404, f"The model is called {model.name!r}.", name)
    return model


def _columns(signature, rows, limits):
    """Returns the values of each input; or of the only one, if the rows are not objects."""
    if not isinstance(rows, list):
        raise RequestError(400, "`instances` must be a list.", rows)
    limits.check_lines(len(rows))
    if not rows:
        return {name: [] for name in signature.required}
    named = [row for row in rows if isinstance(row, dict)]
    if not named:
        return rows
    if len(named) < len(rows) or any(row.keys() != rows[0].keys() for row in rows):
        raise RequestError(400, "All elements of `instances` must have the same names.")
    return {name: [row[name] for row in rows] for name in rows[0]}


routes = [
    Route(f"{PATH}:predict", predict, methods=["POST"]),
    Route(PATH, status),
]
