"""Routes of LibreTranslate's protocol."""

import sys

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from keras_transformer.decoding.hypothesis import ranks_of_whole
from keras_transformer.serving.bodies import client_of, json_or_form, unless_gone
from keras_transformer.serving.errors import RequestError
from keras_transformer.serving.languages import ANY_SOURCE, asked_languages, described, detected
from keras_transformer.serving.markup import Fill, of_html, of_text


async def languages(request: Request) -> JSONResponse:
    """The languages of the model, in LibreTranslate's form."""
    return JSONResponse(described(request.app.state.service.card))


async def detect(request: Request) -> JSONResponse:
    """The language of a text, in LibreTranslate's form: always the model's source language."""
    service = request.app.state.service
    _texts(await json_or_form(request), service.limits)
    return JSONResponse(detected(service.card))


async def settings(request: Request) -> JSONResponse:
    """The settings of LibreTranslate's page: the languages to begin with, and limits."""
    service = request.app.state.service
    entries = described(service.card) or [{"code": ANY_SOURCE, "name": ANY_SOURCE}]
    pair = {"source": entries[0], "target": entries[1] if len(entries) > 1 else entries[0]}
    language = {
        side: {"code": entry["code"], "name": entry["name"]} for side, entry in pair.items()
    }
    off = dict.fromkeys(["apiKeys", "filesTranslation", "keyRequired", "suggestions"], False)
    limits = {"charLimit": service.limits.max_line_chars, "frontendTimeout": 500}  # milliseconds
    return JSONResponse(off | limits | {"language": language, "supportedFilesFormat": []})


async def translate(request: Request) -> JSONResponse:
    """Translates one text or several, plain or HTML, in LibreTranslate's form."""
    service = request.app.state.service
    card, fields = service.card, await json_or_form(request)
    texts = _texts(fields, service.limits)
    asked = asked_languages(card, fields.get("source"), fields.get("target"))
    alternatives = _alternatives(fields)
    form = fields.get("format") or "text"
    split_texts: list[tuple[list[str], Fill]] = []

    def lines() -> list[str]:
        split_texts.extend(_split(texts, form))
        return [line for lines, _ in split_texts for line in lines]

    translator = service.text_translator
    n_best = min(alternatives + 1, translator.settings.max_hypotheses)
    work = service.translate(lines, client_of(request), translator, n_best=n_best, **asked)
    hypotheses = await unless_gone(request, work)
    request.state.rows = len(hypotheses)
    ranks = _joined(split_texts, hypotheses)  # not in a thread, whose start would take longer
    answer = {"translatedText": [best for best, *_ in ranks]}
    if alternatives:
        answer["alternatives"] = [others for _, *others in ranks]
    if fields.get("source") == ANY_SOURCE and detected(card):
        answer["detectedLanguage"] = detected(card) * len(texts)
    is_list = isinstance(fields["q"], list)
    return JSONResponse(answer if is_list else {name: value for name, (value,) in answer.items()})


def _texts(fields, limits):
    if "q" not in fields:
        raise RequestError(400, "Invalid request: missing q parameter")
    texts = fields["q"] if isinstance(fields["q"], list) else [fields["q"]]
    limits.check_lines(len(texts))
    try:
        "".join(texts).encode()
    except (TypeError, UnicodeEncodeError) as error:
        must = "`q` must be a text, or a list of texts, that UTF-8 can encode."
        raise RequestError(400, must, fields["q"]) from error
    return texts


def _split(texts, form):
    """Returns the lines of each text, and the function that joins their translations to a text."""
    if form not in ("text", "html"):
        raise RequestError(400, "`format` must be 'text' or 'html'.", form)
    if form == "html" and sys.version_info < (3, 11, 5):  # wrong matches of possessive groups
        raise RequestError(400, "`format` must be 'text': 'html' needs Python 3.11.5.", form)
    split_text = of_html if form == "html" else of_text
    return [split_text(text) for text in texts]


def _joined(split_texts, hypotheses):
    """Returns the translations of each text, best first, from the hypotheses of all lines."""
    ranks_of_lines = iter([[hypothesis.text for hypothesis in ranks] for ranks in hypotheses])
    answers = []
    for lines, fill in split_texts:
        ranks_of_text = ranks_of_whole([next(ranks_of_lines) for _ in lines])
        answers.append([fill(translations) for translations in ranks_of_text])
    return answers


def _alternatives(fields):
    value = fields.get("alternatives") or 0
    if isinstance(value, str) and value.isascii() and value.isdigit():  # from a form
        value = int(value[:9])
    if type(value) is not int or value < 0:
        raise RequestError(400, "`alternatives` must be an integer of at least 0.", value)
    return value


routes = [
    Route("/translate", translate, methods=["POST"]),
    Route("/languages", languages, methods=["GET", "POST"]),
    Route("/detect", detect, methods=["POST"]),
    Route("/frontend/settings", settings),
]
