"""Lines are translated sentence by sentence, and nothing between the sentences is lost."""

import hypothesis
import pytest
from hypothesis import strategies

from keras_transformer import Translator
from keras_transformer.decoding.long_lines import join_translations
from keras_transformer.decoding.sentences import split_sentences
from tests.decoding.test_translator import make_translator


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    return make_translator(tmp_path_factory.mktemp("sentences") / "numbers.model")


SENTENCES = {
    "two spaces": ("en", "One is here.  Two is\tthere!", ["One is here.", "Two is\tthere!"]),
    "an abbreviation": ("en", "Dr. Smith sat. He slept.", ["Dr. Smith sat.", "He slept."]),
    "another language's": ("de-AT", "Er kam am 3. Mai. Dann schlief er.",
                           ["Er kam am 3. Mai.", "Dann schlief er."]),
    "a number": ("en", "1. First, read this. 2. Then that.",
                 ["1. First, read this.", "2. Then that."]),
    "a mark": ("en", "They waited. ... Nobody came. !", ["They waited.", "... Nobody came. !"]),
    "without spaces": ("zh", "今天天气很好。我们去公园吧！", ["今天天气很好。", "我们去公园吧！"]),
    "no sentence": ("en", "no end", ["no end"]),
    "only a mark": ("en", " ... ", [" ..."]),
    "nothing": ("en", "", [""]),
}  # fmt: skip


@pytest.mark.parametrize("language, text, expected", SENTENCES.values(), ids=SENTENCES)
def test_sentences(language, text, expected):
    assert [sentence for sentence, _ in split_sentences(text, language)] == expected


@hypothesis.given(
    strategies.lists(
        strategies.sampled_from(["Go.", "Yes! ", " ", "\u3000", "Mr. ", "12", "。", "word", "é?"])
        | strategies.text(max_size=5)
    ),
    strategies.sampled_from(["en", "de", "zh", "xx", None]),
)
def test_sentences_and_gaps_are_the_text(parts, language):
    text = "".join(parts)
    found = split_sentences(text, language)
    assert "".join(sentence + gap for sentence, gap in found) == text
    assert all(sentence.strip() for sentence, _ in found) or not text.strip()
    assert not any(gap.strip() for _, gap in found)


@pytest.mark.parametrize(
    "texts, gaps, expected",
    [
        (["One.", "Two.", "Three."], ["  ", "\t", "\n"], "One.  Two.\tThree."),
        (["One.", "", "Three."], ["  ", "\t", ""], "One.  Three."),
        (["", "Two."], ["  ", ""], "Two."),
        (["It rains.", "Let us go!"], ["", ""], "It rains. Let us go!"),
        (["下雨了。", "走吧！"], ["", ""], "下雨了。走吧！"),
        ([], [], ""),
    ],
)
def test_translations_are_joined_by_what_stood_between_the_sentences(texts, gaps, expected):
    assert join_translations(texts, gaps) == expected


def test_a_line_is_translated_as_its_sentences_are(translator):
    sentences = ["Seven hundred and one.", "Eighty is a number!", "Twenty-one."]
    lines = ["  ".join(sentences), "", sentences[1], " ".join(sentences[1:])]
    one, two, three = translator(sentences)
    assert len({one, two, three}) == 3
    assert translator(lines, split="sentences") == [
        f"{one}  {two}  {three}", "", two, f"{two} {three}"
    ]  # fmt: skip
    assert translator(lines) != translator(lines, split="sentences")
    found = translator(lines, n_best=2, split="sentences")
    assert [best.text for best, *_ in found] == translator(lines, split="sentences")
    assert [best.pieces for best, *_ in found] == [3, 1, 1, 2]
    assert [len(ranks) for ranks in found] == [1, 1, 2, 1]


def test_a_long_sentence_is_cut_within(translator):
    short, long = "Seven hundred and one.", "eighty " * 30 + "is long."
    bounds = {"max_source_tokens": 24, "split": "sentences"}
    with pytest.warns(UserWarning, match="line 1 in"):
        expected = [translator(each, max_source_tokens=24) for each in (short, long)]
    assert translator([f"{short} {long}"], **bounds) == [" ".join(expected)]
    with pytest.raises(ValueError, match="line 2 of `sentences` has"):
        translator([f"{short} {long}"], **bounds, on_too_long="error")


def test_attention_is_of_the_whole_line(translator):
    line = "Seven hundred and one. Twenty-one."
    best = translator(line, split="sentences", return_attention=True)[0]
    assert best.pieces == 1 and best.attention is not None


def test_wrong_split_is_an_error(translator):
    with pytest.raises(ValueError, match="split='words'"):
        Translator(translator.model, translator.source_tokenizer, split="words")
