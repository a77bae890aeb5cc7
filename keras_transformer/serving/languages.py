"""The languages of a model, from its card, and those that a request may ask for."""

from typing import Any

from keras_transformer.serving.errors import RequestError
from keras_transformer.texts import is_language, language_tag

# Names of languages, for people; a language that is not here is shown by its code.
NAMES = {
    **{"ar": "Arabic", "cs": "Czech", "da": "Danish", "de": "German", "el": "Greek"},
    **{"en": "English", "es": "Spanish", "fi": "Finnish", "fr": "French", "he": "Hebrew"},
    **{"hi": "Hindi", "hu": "Hungarian", "it": "Italian", "ja": "Japanese", "ko": "Korean"},
    **{"nl": "Dutch", "no": "Norwegian", "pl": "Polish", "pt": "Portuguese", "ro": "Romanian"},
    **{"ru": "Russian", "sv": "Swedish", "tr": "Turkish", "uk": "Ukrainian", "vi": "Vietnamese"},
    **{"zh": "Chinese"},
}
ANY_SOURCE = "auto"


def described(card: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the source language with its targets, then the targets, as LibreTranslate does.

    Targets are entries too, because clients look for both languages of a pair. The list is empty if
    the card names no target.
    """
    source, targets = card.get("source_language") or ANY_SOURCE, _targets(card)
    codes = dict.fromkeys([source, *targets]) if targets else []
    return [
        {"code": code, "name": NAMES.get(code, code), "targets": targets if code == source else []}
        for code in codes
    ]


def detected(card: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the answer of `/detect`: the model's source language; empty if the card has none."""
    code = card.get("source_language")
    return [{"confidence": 100, "language": code}] if code else []


def asked_languages(card: dict[str, Any], source: object, target: object) -> dict[str, Any]:
    """Returns the settings of the languages that a request asks for.

    A model with tokens of languages (`source_languages` in the card) has its own rules and defaults
    for codes, so it gets them unchanged. Arguments and errors are those of `target_language`.
    """
    if not card.get("source_languages"):
        return {"target_language": target_language(card, source, target)}
    for field, code in (("source", source), ("target", target)):
        if code is not None and not isinstance(code, str):
            raise RequestError(400, f"`{field}` must be the code of a language.", code)
    return {
        "source_language": None if source == ANY_SOURCE else source,
        "target_language": target,
    }


def target_language(card: dict[str, Any], source: object, target: object) -> str | None:
    """Returns the language that the model must be told, or `None` if it has one target language.

    Args:
        card: dict, the model card.
        source, target: what the request asks for; `None` if it does not. `EN`, `en-US` and `en_GB`
            are the model's `en`.

    Raises:
        RequestError: if the model does not translate from `source` to `target`, or has several
            targets and `target` is missing.
    """
    if source != ANY_SOURCE:
        _match("source", source, [card.get("source_language")], ANY_SOURCE)
    code = _match("target", target, _targets(card))
    if card.get("target_languages") and code is None:
        raise RequestError(400, f"`target` must be {_any_of(_targets(card))}. Received: none")
    return code if card.get("target_languages") else None


def _targets(card):
    target = card.get("target_language")
    return card.get("target_languages") or ([target] if target else [])


def _match(field, asked, codes, *others):
    """Returns the longest of `codes` that `asked` is a form of; `None` if `asked` is `None`.

    Raises a `RequestError` if there is none; it names `codes` and `others`.
    """
    if asked is None:
        return None
    codes = [code for code in codes if code]
    tag = language_tag(asked) if isinstance(asked, str) else ""
    if known := [code for code in codes if is_language(tag, language_tag(code))]:
        return max(known, key=len)
    must = f"`{field}` must be {_any_of([*others, *codes])}."
    if not codes:
        cure = f"leave `{field}` out, or export the model with `--{field}-language`"
        must = f"The model card names no {field} language: {cure}."
    raise RequestError(400, must, asked)


def _any_of(codes):
    return " or ".join(map(repr, codes))
