"""Our model in a whole `fit`, and the memory of one step."""

import pathlib
import time

import keras
import numpy as np
from process_memory import memory_status

import keras_transformer as kt
from train_peers.corpus import full_dataset
from train_peers.keras_engine import POLICIES, dataset_of
from train_peers.ours import Ours, compiled

LENGTH = 32


class Epochs(Ours):
    """Two epochs of `fit` with `make_dataset`; there is no update before them."""

    def __init__(self, request):
        super().__init__(request)
        self.dataset, self.report = full_dataset(
            request["data"], request["vocabulary"], request["slots"]
        )

    def first_update(self):
        pass

    def measure(self):
        shapes = {
            (*inputs["encoder_token_ids"].shape, labels.shape[1])
            for inputs, labels, _ in self.dataset.as_numpy_iterator()
        }
        ends = [time.perf_counter()]
        clock = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: ends.append(time.perf_counter())
        )
        self.model.fit(self.dataset, epochs=2, verbose=0, callbacks=[clock])
        return {
            "epochs": [end - start for start, end in zip(ends, ends[1:], strict=False)],
            "shapes": len(shapes),
            "batches": self.report.batches_per_epoch,
            "tokens": self.report.target_tokens,
        }


class Memory:
    """The peak memory of one step, above the memory before it."""

    tokens = 0

    def __init__(self, request):
        keras.utils.set_random_seed(0)
        size = getattr(kt.TransformerConfig, request["size"])
        model = kt.Transformer(
            size(request["vocabulary_size"], dropout=0.1), dtype=POLICIES[request["dtype"]]
        )
        # This metric of Keras needs logits.
        options = {} if request["is_fused"] else {"metrics": ["sparse_categorical_accuracy"]}
        self.model = compiled(model, **options)
        self.target_tokens = request["target_tokens"]

    def first_update(self):
        self._fit(LENGTH)

    def measure(self):
        before = memory_status("VmRSS")
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        self._fit(self.target_tokens)
        return {"bytes": memory_status("VmHWM") - before}

    def _fit(self, tokens):
        ids = np.random.default_rng(0).integers(4, self.model.config.vocabulary_size, tokens)
        ids = ids.reshape(-1, LENGTH).astype("int32")
        self.model.fit(dataset_of([(ids, ids, ids)]), verbose=0)
