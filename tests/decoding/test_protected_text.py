"""Protected text stands in a translation exactly once, and nothing else of the text changes."""

import functools

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies
from keras import ops

from keras_transformer import Translator
from keras_transformer.decoding import Hypothesis
from keras_transformer.decoding.long_lines import join_translations
from keras_transformer.decoding.protected_text import MARK, NAMES, find_unknown, mask
from keras_transformer.decoding.text_lines import Line
from keras_transformer.serving.markup import of_html
from tests.decoding.test_translator import make_translator


@pytest.fixture(scope="module")
def finder(translator):
    has = translator.source_tokenizer, translator.model.config.unk_token_id
    return functools.partial(mask, NAMES, functools.partial(find_unknown, *has))


SPANS = {
    "printf": ("%s of %1$d, %-5.2f%%, %(name)s; 5%s", ["%s", "%1$d", "%-5.2f%%", "%(name)s", "%s"]),
    "a percentage": ("100% support, 50%discount, 20 % sure", []),
    "braces": ("a {name}, {{x}}, ${HOME}, {0:.2f} b", ["{name}", "{{x}}", "${HOME}", "{0:.2f}"]),
    "open braces": ("a { and {b} }} {c", ["{ and {b} }"]),
    "only one open": ("a { and {b} c", ["{b}"]),
    "a message of ICU": (
        "{n, plural, =0 {none of {all}} one {# file} other {its # files}} left",
        ["{n, plural, =0 {", "{all}} one {#", "} other {", "#", "}}"],
    ),
    "messages in messages": (
        "{g, select, male {{n, plural, other {he}}} other {they}}",
        ["{g, select, male {{n, plural, other {", "}}} other {", "}}"],
    ),
    "tags": ('a <b class="x>y">c</b> <br/> &amp; <!-- d --> 1 < 2 > 0',
             ['<b class="x>y">', "</b>", "<br/>", "&amp;", "<!-- d -->"]),
    "urls": ("see (http://a.b/c?d=e_(f)), www.g.hi. file://j!",
             ["http://a.b/c?d=e_(f)", "www.g.hi", "file://j"]),
    "emails": ("mail a.b+c@d-e.org. @f g@h", ["a.b+c@d-e.org"]),
    "backticks": ("run `ls -l`, ``a`b`` or ` c", ["`ls -l`", "``a`b``"]),
    "emoji": ("hi \U0001f44b\U0001f3fd! \U0001f468\u200d\U0001f469\u200d\U0001f467 "
              "\u2764\ufe0f 1\ufe0f\u20e3 \U0001f1e9\U0001f1ea \u00a9\ufe0f 5",
              ["\U0001f44b\U0001f3fd", "\U0001f468\u200d\U0001f469\u200d\U0001f467",
               "\u2764\ufe0f", "1\ufe0f\u20e3", "\U0001f1e9\U0001f1ea", "\u00a9\ufe0f"]),
    "unknown": ("one \u4e00\u4e8c two twe\u0301 n\u0304on n\u00fc",
                ["\u4e00\u4e8c", "twe\u0301", "n\u0304on"]),
    "neighbours": ("<b>%s</b>{x} http://a.b/%s/{id}", ["<b>%s</b>{x}", "http://a.b/%s/{id}"]),
    "our own mark": (f"one {MARK}{MARK} two", [MARK + MARK]),
    "nothing": ("one two", []),
    "blank": (" ", []),
}  # fmt: skip


@pytest.mark.parametrize("text, spans", SPANS.values(), ids=SPANS)
def test_spans(finder, text, spans):
    masked, found = finder(text) if "\u4e00" in text else mask(NAMES[:-1], None, text)
    assert found == spans
    assert len(masked.split(MARK)) == len(spans) + 1


# Text -> what is translated, without marks that close what stands before a tag or open the next.
PARTS = {
    "<b>five</b>, six.": ["five", "six."],
    "<b>Five</b>. Six <i>seven</i>! Eight": ["Five", "Six", "seven", "Eight"],
    "five (<b>six</b>): seven": ["five", "six", "seven"],
    "five [ <i>six</i>] ¿<b>seven</b>?": ["five", "six", "seven"],
    "<i>five</i>… <i>six</i>); «seven»": ["five", "six", "«seven»"],
    "<b>five</b>\", <b>six</b>' seven": ["five", "six", "seven"],
    '<b>five</b> "six" <b>Tom</b>\'s': ["five", '"six"', "Tom", "'s"],
    "<b>five</b> .NET <b>six</b>.5 a": ["five", ".NET", "six", ".5 a"],
    "<b>五</b>。六<b>七</b>、八": ["五", "六", "七", "八"],
}


@pytest.mark.parametrize("text", PARTS)
def test_marks_beside_a_tag_are_not_translated(text):
    parts = Line.read(text, "lines", False, functools.partial(mask, ("tags",), None)).parts
    assert [part.text for part in parts if part.text] == PARTS[text]
    texts, gaps = [part.text for part in parts], [part.behind for part in parts]
    assert join_translations(texts, gaps) == text
    lines, fill = of_html(text)
    assert lines == PARTS[text] and fill(lines) == text


def test_expressions_are_a_users_own():
    protect = r"\b[A-Z]{2,}-\d+", "(Acme)", r"\s*"
    _, spans = mask(protect, None, "\u00e4 Acme AB-12  b")
    assert spans == ["Acme", "AB-12"]


@pytest.mark.parametrize("wrong", ["bracse", "", "(a", r"(a)\1", 3, {"name": None}])
def test_what_is_no_pattern_is_refused(translator, wrong):
    with pytest.raises(ValueError, match=r"`protect` must hold names, printf, .* Received: "):
        translator("one", protect=(wrong,))


PLACES = strategies.lists(
    strategies.sampled_from(
        ["%s", "{name}", "<b>", "</b>", "http://a.b", "{n, plural, one {# a} other {b}}", "}", "{"]
        + ["One is here. ", "two", "  ", ".", "5 ", "%", MARK, "\u4e00", "\U0001f44b", "`x`", "`"]
    )
    | strategies.text(max_size=3),
    max_size=8,
).map("".join)


@hypothesis.given(PLACES, strategies.sampled_from(["lines", "sentences"]))
def test_what_is_not_translated_stays(finder, text, split):
    """A translation by the identity is the text; by another letter for each, all but the rest."""
    line = Line.read(text, split, has_tags=False, mask=finder)
    texts, gaps = [part.text for part in line.parts], [part.behind for part in line.parts]
    assert join_translations(texts, gaps).rstrip() == text.rstrip()
    _, spans = finder(text)
    joined = join_translations(["" for _ in texts], gaps)
    rest = iter(joined)
    assert all(letter in rest for letter in "".join(spans))  # all of them, in their order
    if spans:
        assert not any(MARK in one for one in texts)
    unprotected = Line.read(text, split, has_tags=False).parts  # a mark is a part of the text
    assert "".join(part.text + part.behind for part in unprotected) == text


@hypothesis.given(strategies.lists(PLACES, max_size=4))
@hypothesis.settings(max_examples=20)
def test_a_translation_has_each_span_once(translator, finder, lines):
    found = translator(lines, protect=NAMES, max_length=4)
    assert len(found) == len(lines)
    for line, text in zip(lines, found, strict=True):
        rest = 0
        for span in finder(line)[1]:
            rest = text.index(span, rest) + len(span)


def test_parts_are_translated_by_themselves(translator):
    whole = ["Seven hundred and one", "eighty"]
    one, two = translator(whole)
    assert one != two
    lines = ["%s: Seven hundred and one <b> eighty", "eighty", "{x}", "eighty %s"]
    expected = [f"%s: {one} <b> {two}", two, "{x}", f"{two} %s"]
    asked = {"protect": ["printf", "tags", "braces"]}
    assert translator(lines, **asked) == expected
    found = translator(lines, n_best=2, **asked)
    assert [best.text for best, *_ in found] == expected
    assert [len(ranks) for ranks in found] == [2, 2, 1, 2]
    assert translator(lines[0], target_prefix="two", **asked).startswith("%s: two")
    assert translator([], **asked) == []
    with pytest.raises(ValueError, match="line 3 of `lines` has"):
        translator([lines[0], "", "one " * 30], **asked, max_source_tokens=30, on_too_long="error")


@pytest.fixture(scope="module")
def copier():
    """A model with symbols that has learned nothing: it loses them."""
    return make_translator(protected_symbols=3)


COPIED = [
    "%s of seventy-one {x}",
    "eighty",
    "",
    "<b>one</b> two",
    "\u27e63\u27e7 is one of \u27e61\u27e7",
    "%s one %d two %s three %x",  # more than symbols
    "{n, plural, one {one} other {two}}",
    "%s: {x}",
]
COPIES = COPIED[:1] + COPIED[3:5]


def prefer_symbols(log_probs, token_ids, index):
    """Makes every token but the three symbols and the end improbable."""
    is_other = np.isin(np.arange(log_probs.shape[-1]), [2, 4, 5, 6], invert=True)
    return log_probs - ops.convert_to_tensor(20.0 * is_other.astype("float32"))


@pytest.mark.parametrize("settings", [{}, {"split": "sentences"}], ids=["lines", "sentences"])
def test_symbols_that_the_model_drops_or_doubles_are_noticed(copier, settings):
    found = copier(COPIED, n_best=1, processors=(prefer_symbols,), **settings)
    assert [bool(best.protected) for best, *_ in found] == [line in COPIES for line in COPIED]
    for line, (best, *_) in zip(COPIED, found, strict=True):
        _, spans = mask(NAMES[:-1], None, line)
        assert all(best.text.count(span) == line.count(span) for span in spans)


@pytest.mark.parametrize("distinct", [True, False])
def test_translations_are_distinct_also_behind_symbols_of_equal_text(copier, distinct):
    request = copier.request(["%s one %s"], n_best=3, distinct_texts=distinct)
    texts = [
        "\u27e61\u27e7 a \u27e62\u27e7",
        "\u27e62\u27e7 a \u27e61\u27e7",
        "\u27e61\u27e7\u27e62\u27e7",
    ]
    rest = {"score": -1.0, "source_tokens": [], "tokens": [], "log_probs": []}
    answers = [[]]
    request.fill(answers, [[Hypothesis(text=text, **rest) for text in texts]])
    assert [one.text for one in answers[0]] == ["%s a %s"] * (1 if distinct else 2) + ["%s%s"]


@pytest.mark.long
def test_lines_whose_text_is_lost_are_cut(copier):
    lines = COPIED[:2] + COPIED[5:]
    found = copier(lines, n_best=2)
    assert [best.text for best, *_ in found] == copier(lines) == copier(lines)
    assert [best.protected for best, *_ in found][:3] == [["%s", "{x}"], [], []]
    assert copier(lines[0], target_prefix="two").startswith("%s two")
    prefix = "zwei und zwei und drei"  # too long for "one" alone
    long = "one %s " + "seven hundred and ninety thousand " * 3
    options = {"target_prefix": [prefix, ""], "extra_length": 0, "n_best": 1}
    (kept,), (cut,) = copier([long, lines[0]], **options)
    assert kept.text.startswith(prefix) and kept.protected == ["%s"]
    assert cut.text.startswith("%s") and cut.protected == ["%s", "{x}"]
    assert copier(COPIED[4], protect=()) != copier(COPIED[4])


def test_protected_text_is_the_default_of_a_vocabulary_with_symbols(copier, translator):
    assert copier.text_settings.protect == NAMES and translator.text_settings.protect == ()
    assert Translator(copier.model, copier.source_tokenizer, protect=[]).text_settings.protect == ()
