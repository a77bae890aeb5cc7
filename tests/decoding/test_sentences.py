"""Lines are translated sentence by sentence, and nothing between the sentences is lost."""

import hypothesis
import pytest
from hypothesis import strategies

from keras_transformer.decoding.long_lines import join_translations
from keras_transformer.decoding.reports import long_line_reports
from keras_transformer.decoding.sentences import BORDER, split_sentences

# The borders of sentences, each white space or nothing, are between "|".
SENTENCES = {
    "spaces": "One is here.|  |Two is\tthere!|\u3000|Where?\n",
    "abbreviations": "Dr. Smith sat.| |He met J. F. K. Kennedy of the U.S. Navy, e.g. Tom.",
    "a title": "Prof. Müller kam mit z. B. Herrn St. Martin.| |Ms. Ionescu ging.",
    "a month": "Er kam am 3. Mai in die 96. Straße.| |Dann schlief er.",
    "acronyms": "He watched TV.| |Then it was Tom's.| |She left.",
    "a number": "1. First, read this. 2. Then that.",
    "a year": "In 2019 it rose by 3.5 percent. 20 came.| |It fell in 2020.| |Why?!| |Nobody knows.",
    "marks": "They waited. ...| |Nobody came. !",
    "short words": "Go. Yes!| |No. Come here.| |Now go home. Yes.",
    "quotations": "„Halt.“| |Er ging. »Nein!«| |“Why not?”| |(It was Monday.)| |¿Qué?!| |Nada más.",
    "Chinese": "今天天气很好。||我们去公园吧！||“你饿吗？”||我们都很饿。",
    "Hindi": "मैं जा रहा हूँ।| |वह आया है।",
    "Russian": "Он родился в г. Туле.| |А. С. Пушкин родился в Москве.",
    "Arabic": "كيف حالك؟| |أنا بخير.",
    "no border": "no end",
    "a name of a file": "See example.com or a.txt, Node.js.Then go.",
    "lower case": '"Stop!" he said. then he left',
    "only a mark": " ... ",
    "nothing": "",
}  # fmt: skip
TEXTS = strategies.lists(
    strategies.sampled_from(
        ["Go.", "Yes! ", "Then ", " ", "\u3000", "Mr. ", "prof. ", "12", "3. ", "。", "word", "é? "]
        + ["”", "(", "A.", "a.b", "ſ", "K. ", "今天", BORDER, "\x1c", "\x85"]
    )
    | strategies.text(max_size=5)
).map("".join)


@pytest.mark.parametrize("text", SENTENCES.values(), ids=SENTENCES)
def test_sentences(text):
    parts = [*text.split("|"), ""]
    expected = list(zip(parts[::2], parts[1::2], strict=True))
    assert split_sentences(text.replace("|", "")) == expected


@hypothesis.given(TEXTS)
def test_sentences_and_gaps_are_the_text(text):
    found = split_sentences(text)
    assert "".join(map("".join, found)) == text.replace(BORDER, "\ufffd")
    assert all(sentence.strip() for sentence, _ in found) or not text.strip()
    assert not any(gap.strip() for _, gap in found)


@pytest.mark.parametrize(
    "texts, gaps, expected",
    [
        (["One.", "Two.", "Three."], ["  ", "\t", "\n"], "One.  Two.\tThree."),
        (["One.", "", "Three."], ["  ", "\t", ""], "One.  Three."),
        (["", "Two."], ["  ", ""], "Two."),
        (["It rains.", "", "Let us go!"], ["", "", ""], "It rains. Let us go!"),
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
    assert [len(ranks) for ranks in found] == [2, 1, 2, 2]


def test_a_long_sentence_is_cut_within(translator):
    short, long = "Seven hundred and one.", "Eighty " * 30 + "is long."
    bounds = {"max_source_tokens": 24, "split": "sentences"}
    with pytest.warns(UserWarning, match="Line 1 is too long for one"):
        expected = [translator(each, max_source_tokens=24) for each in (short, long)]
    lines = [f"{short} {short}", f"{short} {long}"]
    with pytest.warns(UserWarning, match=r"is 24. Line 2 is too long for one .* \d+ pieces.$"):
        assert translator(lines, **bounds)[1] == " ".join(expected)
    found = translator(lines, **bounds, n_best=1)
    assert [(best.too_long, best.dropped_tokens) for (best,) in found] == [(False, 0), (True, 0)]
    assert found[0][0].pieces == 2
    found = translator([f"{long} {short}"], **bounds, on_too_long="truncate", n_best=1)
    left_out = found[0][0].dropped_tokens
    reported = f"{left_out} tokens at the ends of its parts are left out."
    assert left_out and long_line_reports(found) == [f"Line 1 is too long: {reported}"]
    with pytest.raises(ValueError, match="line 1 of `lines` has"):
        translator([f"{short} {long}"], **bounds, on_too_long="error")


def test_attention_is_of_the_whole_line(translator):
    line = "Seven hundred and one. Twenty-one."
    best = translator(line, split="sentences", return_attention=True)[0]
    assert best.pieces == 1 and best.attention is not None
