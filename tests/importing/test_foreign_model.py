"""A model that others trained, with the token scores that they published: CTranslate2's own tests.

Arabic names in Latin letters. The file of weights is in CTranslate2's form, which is read here
without CTranslate2. The files are not in the repository.
"""

import io
import math
import re
import struct

import numpy as np
import pytest

import keras_transformer as kt
from tests.shared_data import DATA, missing

ctranslate2 = pytest.importorskip("ctranslate2")
FOLDER = DATA / "ctranslate2_transliteration"
pytestmark = [
    pytest.mark.tensorflow_only,
    pytest.mark.long,
    pytest.mark.skipif(not FOLDER.is_dir(), reason=missing("CTranslate2 model")),
]

# Source, target, and the log-probs of its letters and of the end that CTranslate2's tests expect.
PUBLISHED = [
    ("آتزمون", "atzmon", "-.106023 -.065410 -.056002 -.447953 -.230714 -.092184 -.063463"),
    (
        "آتشيسون",
        "achison",
        "-.072660 -.300309 -.181187 -.395671 -.025631 -.123466 -.002034 -.012639",
    ),
    ("آرباكه", "arbake", "-.103136 -.089504 -.063889 -.007327 -.452072 -.060154 -.016636"),
    ("آرثر", "arther", "-.076704 -.036037 -.029253 -.030273 -.149276 -.002440 -.003742"),
]
# Names; then one letter, a letter that the vocabulary lacks, the longest.
WORDS = (
    [source for source, *_ in PUBLISHED]
    + """
    محمد أحمد علي حسن حسين فاطمة عائشة خديجة مريم يوسف إبراهيم إسماعيل موسى عيسى داود سليمان
    القاهرة بغداد دمشق بيروت الرياض طرابلس الجزائر المغرب شكسبير نيوتن أينشتاين باخ موزارت بيتهوفن
    واشنطن لندن باريس برلين مدريد فرانكفورت كوبنهاغن ستوكهولم إسطنبول طهران کابل كراتشي جاكارتا
    طوكيو بكين موسكو وارسو بودابست فؤاد رئيس هيئة لؤلؤ قرّة ظافر ضياء غسان
    ا ڤيينا عبدالرحمنالخوارزميالبغدادي
""".split()
)
POSITIONS = 64
# Their names of parts of a block -> ours, and so on.
QUERY, KEY_VALUE = ("query",), ("key", "value")
ATTENTIONS = {
    "self_attention": ("self_attention", [(*QUERY, *KEY_VALUE), ("output",)]),
    "attention": ("encoder_attention", [QUERY, KEY_VALUE, ("output",)]),
    "ffn": ("feed_forward", [("intermediate",), ("output",)]),
}
PARTS = {
    f"{theirs}/linear_{i}": [f"{ours}/{layer}" for layer in layers]
    for theirs, (ours, linear) in ATTENTIONS.items()
    for i, layers in enumerate(linear)
}
PARTS |= {
    f"{theirs}/layer_norm": [f"{ours}_residual/layer_norm"]
    for theirs, (ours, _) in ATTENTIONS.items()
}
KINDS = {"weight": "kernel"}
EMBEDDINGS = "encoder/source_embedding", "decoder/target_embedding"
OUTPUT_KERNEL = "decoder/projection/weight"
OTHERS = {
    "encoder/embeddings/weight": f"{EMBEDDINGS[0]}/embeddings",
    "decoder/embeddings/weight": f"{EMBEDDINGS[1]}/embeddings",
    OUTPUT_KERNEL: "output_projection/kernel",
    "decoder/projection/bias": "logits/bias",
}


def read_ctranslate2(path):
    """Returns `{name: array}` of a `model.bin` of CTranslate2, whose numbers are float32 or int."""
    file = io.BytesIO(path.read_bytes())

    def number(kind):
        return struct.unpack("<" + kind, file.read(struct.calcsize("<" + kind)))[0]

    def text():
        return file.read(number("H"))[:-1].decode()

    version, _, _, count = number("I"), text(), number("I"), number("I")
    arrays = {}
    for _ in range(count):
        name = text()
        shape = [number("I") for _ in range(number("B"))]
        if version < 4:
            size = number("B") * number("I")
        else:
            _, size = number("B"), number("I")
        width = size // math.prod(shape)
        arrays[name] = np.frombuffer(file.read(size), {1: "i1", 2: "<i2", 4: "<f4"}[width])
        arrays[name] = arrays[name].reshape(shape)
    if version >= 3:
        aliases = [(text(), text()) for _ in range(number("I"))]
        arrays |= {alias: arrays[name] for alias, name in aliases}
    assert not file.read(), "the file must end here"
    return arrays


def weights_of(arrays):
    """Returns the arrays by the paths of our weights; theirs are `(out, in)`, some side by side."""
    angles = np.arange(1, POSITIONS + 1)[:, None] * 10000.0 ** -(np.arange(16) / 15)
    sinusoids = np.hstack([np.sin(angles), np.cos(angles)])  # the file has none
    weights = {f"{embedding}/positions": sinusoids for embedding in EMBEDDINGS}
    for name, array in arrays.items():
        if layer := re.fullmatch(r"(\w+)/layer_(\d)/(\w+/\w+)/(\w+)", name):
            stack, i, part, kind = layer.groups()
            paths = [f"{stack}/block_{i}/{ours}/{KINDS.get(kind, kind)}" for ours in PARTS[part]]
            weights |= zip(paths, (each.T for each in np.split(array, len(paths))), strict=True)
        else:
            weights[OTHERS.get(name, name)] = array.T if name == OUTPUT_KERNEL else array
    return weights


class Letters(kt.data.TokenizerLike):
    """Each letter is a token. The unknown one is the last, as in CTranslate2."""

    pad_token_id, start_token_id, end_token_id = 0, 1, 2

    def __init__(self, side):
        lines = (FOLDER / f"{side}_vocabulary.txt").read_bytes().decode().split("\n")
        self.vocabulary = [line for line in lines if line] + ["<unk>"]
        self.vocabulary_size = len(self.vocabulary)

    def encode(self, texts):
        ids = {token: i for i, token in enumerate(self.vocabulary)}
        return [[ids.get(letter, self.vocabulary_size - 1) for letter in text] for text in texts]

    def decode(self, rows):
        return ["".join(self.vocabulary[i] for i in row if i > 2) for row in rows]


@pytest.fixture(scope="module")
def translator():
    weights = weights_of(read_ctranslate2(FOLDER / "model.bin"))
    source, target = Letters("source"), Letters("target")
    config = kt.TransformerConfig(
        vocabulary_size=target.vocabulary_size,
        source_vocabulary_size=source.vocabulary_size,
        hidden_dim=32,
        intermediate_dim=128,
        normalize_first=True,
        layer_norm_epsilon=1e-5,
        positions="learned",
        max_sequence_length=POSITIONS,
        tie_embeddings="none",
        output_bias=True,
        source_end_token=False,
        unk_token_id=target.vocabulary_size - 1,
    )
    model = kt.Transformer(config)
    for variable in model.weights:
        variable.assign(weights.pop(variable.path))
    assert not weights
    search = {"stopping": "first_beams", "length_penalty": "mean", "alpha": 1.0}
    limits = {"length_ratio": 0.0, "extra_length": POSITIONS, "distinct_texts": False}
    return kt.Translator(model, source, target, **search, **limits)


def test_scores_of_tokens_are_the_published_ones(translator):
    sources, targets, published = zip(*PUBLISHED, strict=True)
    for found, expected in zip(translator.score(sources, targets), published, strict=True):
        np.testing.assert_allclose(found.log_probs, [*map(float, expected.split())], atol=1e-5)


@pytest.fixture(scope="module")
def exported(translator, tmp_path_factory):
    return kt.export_ctranslate2(translator, tmp_path_factory.mktemp("ct2") / "ours", max_tokens=64)


@pytest.mark.parametrize("beam_size", [1, 2, 5])
def test_hypotheses_and_scores_are_those_of_ctranslate2(beam_size, translator, exported):
    """With the published file, and with the one that we write."""
    ours = translator(WORDS, beam_size=beam_size, n_best=beam_size)
    assert len({best.text for best, *_ in ours}) == len(WORDS)
    options = {"beam_size": beam_size, "num_hypotheses": beam_size, "return_scores": True}
    # With 1, its default, the first step is renormalised without the end token.
    options |= {"length_penalty": 1, "min_decoding_length": 0}
    for folder in (FOLDER, exported):
        engine = ctranslate2.Translator(str(folder), intra_threads=1)
        theirs = engine.translate_batch([*map(list, WORDS)], **options)
        for hypotheses, others in zip(ours, theirs, strict=True):
            found = [one.text for one in hypotheses]
            assert found == ["".join(tokens) for tokens in others.hypotheses]
            scores = [one.score for one in hypotheses]
            np.testing.assert_allclose(scores, others.scores, rtol=1e-4)


def test_exported_weights_are_those_of_the_original(exported):
    original = read_ctranslate2(FOLDER / "model.bin")
    written = {
        name.replace("embeddings_0", "embeddings"): array
        for name, array in read_ctranslate2(exported / "model.bin").items()
    }
    assert original.items() and not original.keys() - written.keys()
    for name, array in original.items():
        assert array.tobytes() == written[name].tobytes(), name
    others = [name for name in written if name not in original and written[name].size > 1]
    assert others == [f"{stack}/position_encodings/encodings" for stack in ("decoder", "encoder")]
