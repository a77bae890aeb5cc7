"""LibreTranslate's protocol: `/translate` and `/languages`."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from keras_transformer.serving.bodies import json_or_form, run
from keras_transformer.serving.errors import RequestError, shown
from keras_transformer.serving.languages import described, target_language
from keras_transformer.serving.signature import to_json


async def languages(request: Request) -> JSONResponse:
    """Answers the source language of the model with its targets; nothing if they are not known."""
    return JSONResponse(described(request.app.state.engine.model.card))


async def translate(request: Request) -> JSONResponse:
    """Answers the translations of one text or several, each of one line or several."""
    engine = request.app.state.engine
    model, fields = engine.model, await json_or_form(request)
    texts = _texts(fields, engine.limits)
    language = target_language(model.card, fields.get("source"), fields.get("target"))
    if fields.get("format") not in (None, "text"):
        message = f"`format` must be 'text'. Received: {shown(fields['format'])}"
        raise RequestError(400, message)
    alternatives = _alternatives(fields)
    # A model translates lines, and clients send paragraphs: the line breaks are kept.
    lines = [text.split("\n") for text in texts]
    flat = [line for group in lines for line in group]
    request.state.rows = len(flat)
    found = iter(await _translated(request, flat, alternatives, language))
    answers = [[next(found) for _ in group] for group in lines]
    translated = ["\n".join(best for best, *_ in group) for group in answers]
    others = [_joined_alternatives(group) for group in answers]
    is_list = isinstance(fields["q"], list)
    answer: dict[str, Any] = {"translatedText": translated if is_list else translated[0]}
    if alternatives:
        answer["alternatives"] = others if is_list else others[0]
    return JSONResponse(answer)


def _texts(fields, limits):
    if "q" not in fields:
        raise RequestError(400, "Invalid request: missing q parameter")
    texts = fields["q"] if isinstance(fields["q"], list) else [fields["q"]]
    limits.check_lines(len(texts))
    if not all(isinstance(text, str) for text in texts):
        raise RequestError(
            400, f"`q` must be a text or a list of texts. Received: {shown(fields['q'])}"
        )
    limits.check_lines(sum(text.count("\n") + 1 for text in texts))
    return [text.replace("\r\n", "\n") for text in texts]


def _alternatives(fields):
    value = fields.get("alternatives")
    if value is None:
        return 0
    if isinstance(value, str) and value.isascii() and value.isdigit():  # of a form
        value = int(value[:9])
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise RequestError(
            400, f"`alternatives` must be an integer of at least 0. Received: {shown(value)}"
        )
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


def _joined_alternatives(lines):
    """The k-th alternative of a text has the k-th of each line, or its best where it has fewer."""
    count = max(map(len, lines))
    return [
        "\n".join(line[k] if k < len(line) else line[0] for line in lines) for k in range(1, count)
    ]


routes = [
    Route("/translate", translate, methods=["POST"]),
    Route("/languages", languages),
]
