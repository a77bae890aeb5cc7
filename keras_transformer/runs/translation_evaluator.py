"""A callback that translates a sample after an epoch."""

import inspect
import itertools
import os
import re
from collections.abc import Callable, Iterable
from typing import Any

import keras

from keras_transformer import evaluation, plotting
from keras_transformer.texts import pair_chunks
from keras_transformer.types import Path


class TranslationEvaluator(keras.callbacks.Callback):
    """Translates a sample after an epoch, logs its scores, and prints some lines.

    The scores are those of `evaluation.score`: `val_bleu`, `val_chrf`, `val_wer`, `val_per` and
    `val_cer`.
    Place it before the callbacks that record the logs or use them to choose the best epoch.

    Args:
        translator: translates a list of strings, such as a `Translator` of the model that is
            trained.
        pairs: (source, reference) strings.
        epochs: number of epochs between evaluations. Defaults to `1`.
        tokenized: whether the text is already tokenized: BLEU then splits at white space only.
            Defaults to `False`.
        samples: number of translations to print. Defaults to `3`.
        print_fn: prints a line of text. Defaults to `print`.
        log_dir: folder of the logs of TensorBoard: its subfolder `translations` gets the printed
            samples as a table of source, translation and reference, and, if the translator is a
            `Translator`, an image of the encoder-decoder attention of the first sample. Images
            need matplotlib. Defaults to `None`: no logs.

    Raises:
        ValueError: if `pairs` are no pairs of strings, or there is none.

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
        translator: Callable[[list[str]], list[str]],
        pairs: Iterable[tuple[str, str]],
        epochs: int = 1,
        tokenized: bool = False,
        samples: int = 3,
        print_fn: Callable[[str], Any] = print,
        log_dir: Path | None = None,
    ) -> None:
        super().__init__()
        self._log_dir = log_dir
        self._translator = translator
        self._sources, self._references = next(pair_chunks(pairs), ([], []))
        if not self._sources:
            raise ValueError("`pairs` must hold at least one pair. Received: no pair")
        self._epochs = epochs
        self._tokenized = tokenized
        self._samples = samples
        self._print = print_fn
        parameters = () if log_dir is None else inspect.signature(translator).parameters
        self._is_drawn = "return_attention" in parameters
        if self._is_drawn:
            try:
                plotting.require_matplotlib()
            except ImportError as error:
                self._is_drawn = False
                print_fn(f"TensorBoard gets no attention images. {error}")

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is None or (epoch + 1) % self._epochs:
            return
        translations = self._translator(self._sources)
        for name in evaluation.SCORES:
            found = evaluation.score(name, translations, self._references, self._tokenized)
            logs[f"val_{name}"] = found.value
        if (self.params or {}).get("verbose") in (1, "auto"):
            self._print("")  # Keras's progress bar has not ended its line yet
        for source, translation in zip(self._sources[: self._samples], translations, strict=False):
            self._print(f"{source} -> {translation}")
        if self._log_dir is not None:
            self._write_logs(translations, epoch)

    def _write_logs(self, translations, epoch):
        from keras_transformer.runs.event_log import EventLog  # only logs need TensorBoard

        rows = zip(self._sources, translations, self._references, strict=True)
        cells = [[_markdown(text) for text in row] for row in itertools.islice(rows, self._samples)]
        table = [["source", "translation", "reference"], ["---"] * 3, *cells]
        text = "\n".join(f"| {' | '.join(row)} |" for row in table)
        log = EventLog(os.path.join(self._log_dir, "translations"))
        log.text("translations", text, epoch)
        if self._is_drawn and (image := self._attention_image()) is not None:
            log.image("attention", image, epoch)

    def _attention_image(self):
        """Returns the attention of the first sample as the bytes of a PNG, or `None`."""
        line = self._sources[0]
        (best,) = self._translator(line, return_attention=True, on_too_long="truncate")
        if not best.tokens:
            return None
        scores, tokens = best.attention.encoder_decoder, (best.tokens, best.source_tokens)
        figure = plotting.plot_attention(scores, *tokens, line, "translation", "source")
        return figure._repr_png_()


def _markdown(text):
    """Returns text for a cell of a Markdown table: its special characters are escaped."""
    return re.sub(r"([\\`*_{}\[\]<>()#+.!|~-])", r"\\\1", text)
