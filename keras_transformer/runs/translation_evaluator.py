"""A callback that translates a sample after an epoch."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras

from keras_transformer import evaluation
from keras_transformer.data.language_codes import LANGUAGES
from keras_transformer.texts import pair_chunks


class TranslationEvaluator(keras.callbacks.Callback):
    """Translates a sample after an epoch, logs its scores, and prints some lines.

    The scores are those of `evaluation.score`, logged as `val_bleu`, `val_chrf`, `val_wer`,
    `val_per` and `val_cer`. Place it before the callbacks that record the logs or use them to
    choose the best epoch.

    Args:
        translator: translates a list of strings, such as a `Translator` of the model that is
            trained.
        pairs: (source, reference) strings. Pairs with the same source are one line with several
            references.
        epochs: number of epochs between evaluations. Defaults to `1`.
        tokenized: whether the text is already tokenized: BLEU then splits at white space only.
            Defaults to `False`.
        samples: number of translations to print. Defaults to `3`.
        print_fn: prints a line of text. Defaults to `print`.
        languages: for a model with tokens of languages, such as NLLB: codes of source and target of
            each pair. The translator is called with lists of them, `source_language` and
            `target_language`. Equal sources with other languages are other lines. Optional.

    Raises:
        ValueError: if an item of `pairs` is not a pair of strings, there is no pair, or `languages`
            has another length.

    Example:

    >>> pairs = [("a b c d", "a b c d"), ("e f g h", "E F G H")]
    >>> evaluator = keras_transformer.TranslationEvaluator(lambda lines: lines, pairs, samples=1)
    >>> logs = {}
    >>> evaluator.on_epoch_end(0, logs)
    a b c d -> a b c d
    >>> round(logs["val_bleu"], 2)
    50.0
    """

    def __init__(
        self,
        translator: Callable[..., list[str]],
        pairs: Iterable[tuple[str, str]],
        epochs: int = 1,
        tokenized: bool = False,
        samples: int = 3,
        print_fn: Callable[[str], Any] = print,
        languages: Sequence[Sequence[str]] | None = None,
    ) -> None:
        super().__init__()
        self._translator = translator
        sources, targets = next(pair_chunks(pairs), ([], []))
        # Codes are part of a line: of equal sources, each direction is a line.
        codes: list[tuple[str, ...]] = [()] * len(sources)
        if languages is not None:
            codes = [tuple(pair) for pair in languages]
        if len(codes) != len(sources):
            raise ValueError(
                "`languages` must hold the codes of each pair. Received: "
                f"{len(codes)} items, {len(sources)} pairs"
            )
        keys: list[Any] = list(zip(sources, codes, strict=True))
        merged: Any = evaluation.merge_references(zip(keys, targets, strict=True))
        lines, self._references = merged
        self._sources = [source for source, _ in lines]
        columns = zip(*(pair for _, pair in lines), strict=True)
        self._languages = dict(zip(LANGUAGES, map(list, columns), strict=False))
        if not self._sources:
            raise ValueError("`pairs` must hold at least one pair. Received: no pair")
        self._epochs = epochs
        self._tokenized = tokenized
        self._samples = samples
        self._print = print_fn

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is None or (epoch + 1) % self._epochs:
            return
        translations = self._translator(self._sources, **self._languages)
        for name in evaluation.SCORES:
            score = evaluation.score(name, translations, self._references, self._tokenized)
            logs[f"val_{name}"] = score.value
        if (self.params or {}).get("verbose") in (1, "auto"):
            self._print("")  # Keras's progress bar has not ended its line yet
        for source, translation in zip(self._sources[: self._samples], translations, strict=False):
            self._print(f"{source} -> {translation}")
