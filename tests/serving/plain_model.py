"""A stand-in for `ServedModel` without TensorFlow, and `python -m` of it: a server of the stand-in.

It upper-cases, and repeats texts in its n-best lists as older exports do. The k-th translation is
that of `k // 2` exclamation marks; a line with a target language begins with it.
"""

import json
import sys
import threading
import time

import numpy as np

from keras_transformer.serving.errors import RequestError
from keras_transformer.serving.signature import Signature, Spec

TEXT, NUMBER = Spec("string", (-1,)), Spec("float32", (-1,))
BEAM_SIZE = 4
REFUSED = b"refused"


class PlainModel:
    """Answers when `may_run` is set, and records the texts of each batch in `batches`."""

    name = "plain"

    def __init__(self, card=None):
        self.card = card or {}
        self.batches = []
        self.runs, self.may_run = threading.Event(), threading.Event()
        self.may_run.set()
        defaults = {"n_best": np.array([BEAM_SIZE], np.int32)}
        defaults |= {"target_prefix": np.array([b""], object)}
        inputs = {"text": TEXT, "n_best": Spec("int32", (-1,)), "target_prefix": TEXT}
        if self.card.get("target_languages"):
            defaults["target_language"] = np.array([b""], object)
            inputs["target_language"] = TEXT
        matrix = {name: Spec(kind.dtype, (-1, -1)) for name, kind in (("translations", TEXT),
                  ("scores", NUMBER))}  # fmt: skip
        ids = Spec("int32", (-1, -1))
        self.signatures = {
            each.name: each
            for each in (
                Signature("serving_default", {"text": TEXT}, {"translation": TEXT}, {}),
                Signature("translate_n_best", inputs, matrix, defaults),
                Signature("tokenize", {"text": TEXT}, {"token_ids": ids, "lengths": ids}, {}),
                Signature("detokenize", {"token_ids": ids}, {"text": TEXT}, {}),
            )
        }

    def signature(self, name):
        if not isinstance(name, str) or name not in self.signatures:
            raise RequestError(400, "no such signature")
        return self.signatures[name]

    def warm_up(self):
        pass

    def call(self, name, inputs):
        if name == "tokenize":  # a token for each word
            return {"lengths": np.array([len(text.split()) for text in inputs["text"]])}
        self.runs.set()
        self.may_run.wait(60)
        inputs = self.signatures[name].defaults | inputs
        text = inputs["text"].tolist()
        self.batches.append([one.decode() for one in text])
        if any(REFUSED in one for one in text):
            raise RequestError(400, "The model failed: a line was refused.")
        if name == "serving_default":
            return {"translation": np.array([one.upper() for one in text], object)}
        (language,) = inputs.get("target_language", [b""])
        ranks = range(inputs["n_best"][0])
        texts = [[language + one.upper() + b"!" * (k // 2) for k in ranks] for one in text]
        scores = np.array([[-float(k) for k in ranks]] * len(text), np.float32)
        return {"translations": np.array(texts, object), "scores": scores}


class StuckModel(PlainModel):
    """A batch with the line `stuck` takes a minute."""

    def call(self, name, inputs):
        if b"stuck" in inputs["text"].tolist():
            time.sleep(60)
        return super().call(name, inputs)


def main(seconds_to_load, limits, proxies):
    """Serves the stand-in, which takes so long to load; the limits are JSON."""
    from keras_transformer.serving import server
    from keras_transformer.serving.limits import Limits

    server.DRAIN_SECONDS, server.EXIT_SECONDS = 1, 5  # not 20 and 24

    def load():
        time.sleep(float(seconds_to_load))
        return StuckModel()

    server.serve(
        load,
        host="127.0.0.1",
        port=0,
        limits=Limits(**json.loads(limits)),
        proxies=proxies,
        max_batch=8,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
