"""OpenNMT-tf: its own Transformer of the same sizes, with random weights, in its own environment.

    python3.10 -m venv onmt && onmt/bin/pip install opennmt-tf==2.32.0 tensorflow==2.13.1

It needs an older Python and TensorFlow, so it runs in its own process. Its time includes the pipe
and the look-up of token strings.
"""

import pathlib

from json_process import JSONProcess

WORKER = pathlib.Path(__file__).with_name("opennmt_worker.py")


class OpenNMT:
    name = "OpenNMT-tf"

    def __init__(self, python, config, threads):
        self._process = JSONProcess([python, str(WORKER)], self.name)
        sizes = {
            "num_layers": [config.num_encoder_layers, config.num_decoder_layers],
            "num_units": config.hidden_dim,
            "num_heads": config.num_heads,
            "ffn_inner_dim": config.intermediate_dim,
            "pre_norm": config.normalize_first,
        }
        vocabulary_size = config.vocabulary_size
        self._process.ask({"threads": threads, "vocabulary_size": vocabulary_size, "sizes": sizes})

    def decode(self, sentences, beam_size, length):
        return self._process.ask({"sentences": sentences, "beam_size": beam_size, "length": length})

    def close(self):
        self._process.close()
