"""An engine without a model, and `python -m` of it: a server of it.

It upper-cases; the k-th translation ends in k exclamation marks. A translation begins with its
prefix, or with the language that a tag asks for. A row with `REFUSED` fails its whole batch.
"""

import json
import os
import pathlib
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np

from keras_transformer import Translator
from keras_transformer.data import TokenizerLike
from keras_transformer.decoding.engine import Engine, SearchResult, SearchTree
from keras_transformer.decoding.languages import split_tag
from keras_transformer.decoding.scores import IMPOSSIBLE
from tests.waiting import wait_until

BEAM_SIZE = 4
REFUSED = "refused"
CARD = {
    "name": "plain",
    "source_language": "en",
    "target_language": "de",
    "bleu": None,
    "search": {"beam_size": BEAM_SIZE},
}
LINES = ["ein Hund", "", "größer", "a  b "]


def translation_of(line):
    """The answer that is right: a line of spaces has no text."""
    return line.upper() if line.strip() else ""


class ByteTokenizer(TokenizerLike):
    """A token for each byte of UTF-8."""

    start_token_id, end_token_id, unk_token_id, pad_token_id = 256, 257, 258, 259
    vocabulary_size = 260
    vocabulary = [chr(byte) for byte in range(128)] + [f"<{i}>" for i in range(128, 260)]

    def __init__(self, languages=()):
        self.languages = list(languages)

    def encode(self, texts):
        return [list(text.encode()) for text in texts]

    def decode(self, rows):
        kept = ([int(i) for i in row if i < 256] for row in rows)
        return [bytes(row).decode(errors="replace") for row in kept]


class PlainEngine(Engine):
    """Answers when `may_run` is set, and records the texts of each batch in `batches`."""

    name = "a plain engine"
    has_search_tree = True
    defaults = {
        "beam_size": BEAM_SIZE,
        "alpha": 0.5,
        "max_source_tokens": 1_000_000,
        "extra_length": 1_000_000,
    }

    def __init__(self, card=CARD):
        self.card = {"name": "plain", **card}
        tokenizer = ByteTokenizer(card.get("target_languages", ()))
        self.tokenizers = tokenizer, tokenizer
        names = "start_token_id", "end_token_id", "unk_token_id", "pad_token_id", "vocabulary_size"
        self.config = SimpleNamespace(**{name: getattr(tokenizer, name) for name in names})
        self.config.positions = "sinusoidal"
        self.batches = []
        self.runs, self.may_run = threading.Event(), threading.Event()
        self.may_run.set()

    def search(self, source_ids, prefix_ids, settings, n_best):
        self.runs.set()
        self.may_run.wait(60)
        texts = self.tokenizers[0].decode(source_ids)
        self.batches.append(texts)
        if any(REFUSED in text for text in texts):
            raise ValueError("A line was refused.")
        prefixes = [""] * len(texts)
        if prefix_ids is not None:
            prefixes = self.tokenizers[1].decode(prefix_ids)
        found = [
            [self._translation(text, prefix) + "!" * rank for rank in range(n_best)]
            for text, prefix in zip(texts, prefixes, strict=True)
        ]
        # As a search that finds only one translation of an empty line.
        is_there = [[bool(text) or not rank for rank in range(n_best)] for text in texts]
        rows = [[list(text.encode()) for text in ranks] for ranks in found]
        longest = max((len(row) for ranks in rows for row in ranks), default=0) + 1
        shape = len(texts), n_best
        end = self.config.end_token_id
        result = SearchResult(
            token_ids=np.full((*shape, longest), self.config.pad_token_id, np.int32),
            lengths=np.zeros(shape, np.int32),
            scores=np.full(shape, IMPOSSIBLE, np.float32),
            log_probs=np.zeros((*shape, longest), np.float32),
        )
        for row, rank in np.argwhere(is_there):
            length = len(rows[row][rank]) and len(rows[row][rank]) + 1
            result.token_ids[row, rank, :length] = [*rows[row][rank], end][:length]
            result.lengths[row, rank] = length
            result.log_probs[row, rank, :length] = -1.0
            result.scores[row, rank] = -settings.alpha * len(texts[row]) - rank
        return result

    def _translation(self, text, prefix):
        if not text:
            return ""
        tag, rest = split_tag(text) if self.card.get("target_languages") else ("", text)
        return prefix + tag.strip("<>") + (rest.strip() if tag else text).upper()

    def score(self, source_ids, target_ids):
        return np.where(target_ids == self.config.pad_token_id, 0.0, -0.5).astype(np.float32)

    def attend(self, source_ids, target_ids):
        """A token attends to those that are equal."""
        scores = (target_ids[:, :, None] == source_ids[:, None]).astype(np.float32)
        return {"encoder_decoder": [scores[:, None]]}

    def search_tree(self, source_ids, settings):
        def tree(row):
            steps = row[row != self.config.pad_token_id][:, None]
            zeros = np.zeros_like(steps)
            return SearchTree(steps, zeros, zeros - 0.5, zeros == 0)

        return [tree(row) for row in source_ids]


def plain_translator(card=CARD, **settings):
    """A translator above the engine."""
    return Translator(PlainEngine(card), **settings)


class StuckEngine(PlainEngine):
    """A batch with the line `stuck` takes a minute, or until there is a file."""

    def __init__(self, gate):
        super().__init__()
        self._gate = gate

    def search(self, source_ids, *arguments):
        if "stuck" in self.tokenizers[0].decode(source_ids):
            wait_until(self._gate.exists)
        return super().search(source_ids, *arguments)


def main(
    gate,
    seconds_to_load=0,
    drain_seconds=20,
    exit_seconds=24,
    proxies="",
    settings=None,
    has_reader=True,
    **limits,
):
    """Serves the engine, which takes so long to load, perhaps with a log that nobody reads."""
    from keras_transformer.serving import server
    from keras_transformer.serving.limits import Limits

    server.DRAIN_SECONDS, server.EXIT_SECONDS = drain_seconds, exit_seconds

    if not has_reader:
        read_end, write_end = os.pipe()
        os.close(read_end)
        os.dup2(write_end, 1)

    def load():
        time.sleep(seconds_to_load)
        return Translator(StuckEngine(pathlib.Path(gate)), **(settings or {}))

    server.serve(
        load,
        host="127.0.0.1",
        port=0,
        limits=Limits(**limits),
        proxies=proxies,
        max_batch=8,
    )


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
