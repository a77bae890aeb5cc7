"""LibreTranslate's protocol: `/translate` and `/languages`."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from keras_transformer.serving.bodies import json_or_form
from keras_transformer.serving.errors import RequestError, shown
from keras_transformer.serving.signature import to_json

# The names of languages for people; other languages are shown by their code.
NAMES = {
    **{"ar": "Arabic", "cs": "Czech", "da": "Danish", "de": "German", "el": "Greek"},
    **{"en": "English", "es": "Spanish", "fi": "Finnish", "fr": "French", "he": "Hebrew"},
    **{"hi": "Hindi", "hu": "Hungarian", "it": "Italian", "ja": "Japanese", "ko": "Korean"},
    **{"nl": "Dutch", "no": "Norwegian", "pl": "Polish", "pt": "Portuguese", "ro": "Romanian"},
    **{"ru": "Russian", "sv": "Swedish", "tr": "Turkish", "uk": "Ukrainian", "vi": "Vietnamese"},
    **{"zh": "Chinese"},
}


async def languages(request: Request) -> JSONResponse:
    """Answers the source language of the model with its target; nothing if they are not known."""
    card = request.app.state.engine.model.card
    source, target = card.get("source_language"), card.get("target_language")
    if not source or not target:
        return JSONResponse([])
    return JSONResponse([{"code": source, "name": NAMES.get(source, source), "targets": [target]}])


async def translate(request: Request) -> JSONResponse:
    """Answers the translations of one text or several, each of one line or several."""
    engine = request.app.state.engine
    model, fields = engine.model, await json_or_form(request)
    texts = _texts(fields)
    _check_languages(model.card, fields)
    alternatives = _alternatives(fields)
    # A model translates lines, and clients send paragraphs: the line breaks are kept.
    lines = [text.split("\n") for text in texts]
    flat = [line for group in lines for line in group]
    request.state.rows = len(flat)
    found = iter(await _translated(engine, flat, alternatives))
    answers = [[next(found) for _ in group] for group in lines]
    translated = ["\n".join(best for best, *_ in group) for group in answers]
    others = [_joined_alternatives(group) for group in answers]
    is_list = isinstance(fields["q"], list)
    answer: dict[str, Any] = {"translatedText": translated if is_list else translated[0]}
    if alternatives:
        answer["alternatives"] = others if is_list else others[0]
    return JSONResponse(answer)


def _texts(fields):
    if "q" not in fields:
        raise RequestError(400, "Invalid request: missing q parameter")
    texts = fields["q"] if isinstance(fields["q"], list) else [fields["q"]]
    if not all(isinstance(text, str) for text in texts):
        raise RequestError(
            400, f"`q` must be a text or a list of texts. Received: {shown(fields['q'])}"
        )
    return [text.replace("\r\n", "\n") for text in texts]


def _check_languages(card, fields):
    """A field that is missing is right: there is one pair of languages."""
    source = fields.get("source", "auto")
    if source not in ("auto", card.get("source_language") or source):
        message = f"`source` must be 'auto' or {card['source_language']!r}. "
        raise RequestError(400, f"{message}Received: {shown(source)}")
    target = fields.get("target")
    if target not in (None, card.get("target_language") or target):
        message = f"`target` must be {card['target_language']!r}. Received: {shown(target)}"
        raise RequestError(400, message)
    if fields.get("format", "text") != "text":
        message = f"`format` must be 'text'. Received: {shown(fields['format'])}"
        raise RequestError(400, message)


def _alternatives(fields):
    value = fields.get("alternatives", 0)
    if isinstance(value, str) and value.isascii() and value.isdigit():  # of a form
        value = int(value[:9])
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise RequestError(
            400, f"`alternatives` must be an integer of at least 0. Received: {shown(value)}"
        )
    return value


async def _translated(engine, lines, alternatives):
    """Returns a list for each line: the best translation, then at most so many others."""
    n_best = engine.model.signatures.get("translate_n_best")
    if not alternatives or n_best is None:
        found = await engine.run("serving_default", {"text": lines})
        return [[text] for text in to_json(found["translation"])]
    # The default is the beam size, and no more can be asked for.
    count = min(alternatives + 1, int(n_best.defaults["n_best"][0]))
    found = await engine.run("translate_n_best", {"text": lines, "n_best": [count]})
    texts, scores = to_json(found["translations"]), to_json(found["scores"])
    return [
        [
            row[0],
            *(text for text, score in zip(row[1:], line[1:], strict=True) if score is not None),
        ]
        for row, line in zip(texts, scores, strict=True)
    ]


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
