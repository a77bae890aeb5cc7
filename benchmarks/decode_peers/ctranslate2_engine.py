"""CTranslate2, an engine in C++, with our weights.

It takes and returns token strings, so its time includes their look-up, and the conversion from and
to ids. Its length penalty is n ** alpha, and n counts the end token, whether or not the
end token is returned (4.8.5). It stops at `beam_size` finished hypotheses.
Free-running, it has one maximum length for the batch.
"""

import tempfile

import ctranslate2

from decode_peers import longest
from keras_transformer.export.ctranslate2 import set_special_tokens, transformer_spec

# Number of positions in the file: CTranslate2 reads a table and has no formula.
POSITIONS = 1024


class CTranslate2:
    def __init__(self, model, compute_type, threads):
        self.name = f"CTranslate2 {compute_type}"
        with tempfile.TemporaryDirectory() as folder:
            convert(model, folder)
            self.translator = ctranslate2.Translator(
                folder, compute_type=compute_type, intra_threads=threads, inter_threads=1
            )

    def decode(self, sentences, beam_size, length=None):
        options = {
            "length_penalty": 0.6,
            "min_decoding_length": length or 1,
            "max_decoding_length": length or max(longest(sentence) for sentence in sentences),
        }
        results = self._translate(sentences, beam_size, **options)
        return [[int(token) for token in result.hypotheses[0]] for result in results]

    def scored(self, sentences, beam_size, max_length, alpha):
        """Returns the best hypothesis of each sentence, without its end token, and its score.

        An empty hypothesis is allowed; by default CTranslate2 forbids it.
        """
        options = {
            "length_penalty": alpha,
            "min_decoding_length": 0,
            "max_decoding_length": max_length,
            "return_scores": True,
        }
        results = self._translate(sentences, beam_size, **options)
        return [([int(token) for token in r.hypotheses[0]], r.scores[0]) for r in results]

    def _translate(self, sentences, beam_size, **options):
        return self.translator.translate_batch(
            [[str(token_id) for token_id in sentence] for sentence in sentences],
            beam_size=beam_size,
            max_batch_size=0,
            max_input_length=0,  # the default cuts longer sentences without a message
            **options,
        )


def convert(model, folder):
    """Writes a `Transformer` as a CTranslate2 model whose token strings are the token ids."""
    spec = transformer_spec(model, POSITIONS)
    tokens = [str(token_id) for token_id in range(model.config.vocabulary_size)]
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    set_special_tokens(spec, model.config, tokens)  # the sentences have an end token
    spec.validate()
    spec.optimize()
    spec.save(folder)
