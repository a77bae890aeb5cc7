"""LibreTranslate's protocol: `/translate` and `/languages`."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from keras_transformer.serving.bodies import json_or_form, run
from keras_transformer.serving.errors import RequestError
from keras_transformer.serving.languages import described, target_language
from keras_transformer.serving.signature import to_json


async def languages(request: Request) -> JSONResponse:
    """Languages, as LibreTranslate's.

    ---
    responses:
      200: {$ref: "#/components/responses/Languages"}
      503: {$ref: "#/components/responses/Unavailable"}
    """
    return JSONResponse(described(request.app.state.engine.model.card))


async def translate(request: Request) -> JSONResponse:
    """Translate one text or several, each of one line or several, as LibreTranslate's.

    ---
    requestBody:
      required: true
      content:
        application/json:
          schema: {$ref: "#/components/schemas/TranslateRequest"}
        application/x-www-form-urlencoded:
          schema: {$ref: "#/components/schemas/TranslateForm"}
    responses:
      200: {$ref: "#/components/responses/Translation"}
      400: {$ref: "#/components/responses/BadRequest"}
      408: {$ref: "#/components/responses/TooSlow"}
      413: {$ref: "#/components/responses/TooLarge"}
      415: {$ref: "#/components/responses/UnsupportedMediaType"}
      503: {$ref: "#/components/responses/Unavailable"}
    """
    engine = request.app.state.engine
    card, fields = engine.model.card, await json_or_form(request)
    # A model translates lines, and clients send paragraphs: the line breaks are kept.
    texts = [text.split("\n") for text in _texts(fields, engine.limits)]
    language = target_language(card, fields.get("source"), fields.get("target"))
    if fields.get("format") not in (None, "text"):
        raise RequestError(400, "`format` must be 'text'.", fields["format"])
    alternatives = _alternatives(fields)
    lines = [line for text in texts for line in text]
    request.state.rows = len(lines)
    found = iter(await _translated(request, lines, alternatives, language))
    answers = [_joined([next(found) for _ in text]) for text in texts]
    is_list = isinstance(fields["q"], list)
    translated, others = [best for best, *_ in answers], [rest for _, *rest in answers]
    answer: dict[str, Any] = {"translatedText": translated if is_list else translated[0]}
    if alternatives:
        answer["alternatives"] = others if is_list else others[0]
    return JSONResponse(answer)


def _texts(fields, limits):
    if "q" not in fields:
        raise RequestError(400, "Invalid request: missing q parameter")
    texts = fields["q"] if isinstance(fields["q"], list) else [fields["q"]]
    try:
        lines = "\n".join(texts).count("\n") + 1
    except TypeError as error:
        raise RequestError(400, "`q` must be a text or a list of texts.", fields["q"]) from error
    limits.check_lines(lines)
    return [text.replace("\r\n", "\n") for text in texts]


def _alternatives(fields):
    value = fields.get("alternatives")
    if value is None:
        return 0
    if isinstance(value, str) and value.isascii() and value.isdigit():  # of a form
        value = int(value[:9])
    if type(value) is not int or value < 0:
        raise RequestError(400, "`alternatives` must be an integer of at least 0.", value)
    return value


async def _translated(request, lines, alternatives, language):
    """Returns a list for each line: the best translation, then at most so many others."""
    n_best = request.app.state.engine.model.signatures.get("translate_n_best")
    if n_best is None or not (alternatives or language):
        found = await run(request, "serving_default", {"text": lines})
        return [[text] for text in to_json(found["translation"])]
    # The default is the beam size, and no more can be asked for.
    count = min(alternatives + 1, int(n_best.defaults["n_best"][0]))
    values = {"text": lines, "n_best": [count]}
    if language:
        values["target_language"] = [language]
    found = await run(request, "translate_n_best", values)
    return list(map(_distinct, to_json(found["translations"]), to_json(found["scores"])))


def _distinct(texts, scores):
    """Returns the best text, then the others that are there and differ; some models repeat them."""
    others = [text for text, score in zip(texts, scores, strict=True) if score is not None]
    return list(dict.fromkeys([texts[0], *others]))


def _joined(lines):
    """Returns a text for each rank: its translations of each line, or the best if there is none."""
    ranks = range(max(map(len, lines)))
    return ["\n".join(line[k] if k < len(line) else line[0] for line in lines) for k in ranks]


routes = [
    Route("/translate", translate, methods=["POST"]),
    Route("/languages", languages),
]
