"""Whatever a client sends, its text is read in linear time: one request cannot hold a server."""

import contextlib
import functools
import time
import timeit

import pytest

from keras_transformer.decoding.hypothesis import Hypothesis
from keras_transformer.decoding.languages import split_tag
from keras_transformer.decoding.protected_text import NAMES, find_unknown, mask
from keras_transformer.decoding.search_settings import SearchSettings
from keras_transformer.decoding.sentences import split_sentences
from keras_transformer.decoding.text_lines import Line
from keras_transformer.serving.errors import RequestError
from keras_transformer.serving.forms import read_form
from keras_transformer.serving.markup import of_html, of_text

pytestmark = pytest.mark.slow
N, TIMES = 500, 64
# Linear time is 64 times as much; n * sqrt(n) would be 512, and n * n 4,096. New memory for the
# long text may make it 2 or 3 times slower.
MOST = 250
ATTEMPTS = 20  # a busy machine may slow several in a row; one is enough


class Letters:
    """A tokenizer of letters, of which it knows all but "?"."""

    vocabulary = ("a", "?")

    def encode(self, lines):
        return [[int(letter == "?") for letter in line] for line in lines]


def protect(name):
    return functools.partial(mask, (name,), functools.partial(find_unknown, Letters(), 1))


def translate(text, read=of_text):
    """Reads a text, protects, splits and puts it together again."""
    masked = functools.partial(mask, NAMES[:-1], None)
    lines, fill = read(text)
    joined = []
    for line in (Line.read(text, "sentences", False, masked) for text in lines):
        found = [[hypothesis(part.text)] for part in line.parts]
        joined.append(line.join(found, " ", SearchSettings())[0].text)
    return fill(joined)


def hypothesis(text):
    return Hypothesis(text=text, score=0.0, source_tokens=[], tokens=[], log_probs=[])


def form(text, boundary=None):
    """Reads a form, which may be wrong, with any number of fields."""
    with contextlib.suppress(RequestError):
        read_form(text.encode(), 10**9, boundary)


def runs(size, step):
    """Runs of backticks of different lengths: none is ever closed."""
    lengths = range(1, int((2 * size) ** 0.5))
    return " ".join("`" * length for length in lengths[::step])


def nested(before, opening, closing):
    return lambda size: before + opening * (size // 2) + closing * (size // 2)


# What reads the text: texts, each a string that is repeated, one with a beginning and an end that
# are not, or a function of the size.
TEXTS = {
    "printf": [
        *("%", "%1", "%1$", "%(a", "%0", "%-0+#'", "%*", "9%", "%.", "%ll", "%%d", "%d9"),
        *(("%", "0", ""), ("%", "1", "!"), ("%1$", "0", "!"), ("%(", "a", ""), ("%.", "1", "")),
    ],
    "braces": [
        *("{", "}", "{}", "{a ", "${", "#", "{a,plural,", "{ a , plural ,", "{a,select,{#}"),
        *(nested("", "{", "}"), nested("", "{a,select,{", "}}"), nested("{", "{", "}")),
        *(("{", " ", ""), ("{", "a", ""), ("{a", " ", "!"), ("{a,", " ", "!")),
    ],
    "tags": [
        *("<", "<a ", "<a '", "<a \"b'", "<a b='c' ", "</", "<!--", "<!-- -", "&", "&a", "&#1"),
        *(("<a", "' \"", ""), ("<a", " ", ""), ("<a '", "b", ""), ("<!--", "-", ""), "&#x1"),
    ],
    "urls": [
        *("http://", "www.", "www.a(", "www.a()", "www.(a", "http://a,", "ftp://a.", "https://)"),
        *(("www.", ".", ""), ("www.a(", "b", ""), ("www.", "(a)", ","), nested("www.a", "(", ")")),
    ],
    "emails": [
        *("a", "@", "a@", "a@b.", "a.a", "a@-", "-@-.", "a@a.a@", "a+"),
        *(("a@", "b", ""), ("a@", "b.", ""), ("a@", "b.", "@"), ("a@", "b-", ".")),
    ],
    "backticks": ["`", "` ", "`a", "``a`", "``` a`` "]
    + [functools.partial(runs, step=step) for step in (1, -1)],
    "emoji": ["0", "0\ufe0f", "\u2600", "\u2600\u200d", "\ufe0f", "\u20e3", "\u00a9\ufe0f", "*"],
    "unknown": ["a", "?", "a ", "\u0301", "a\u0301", "?\u0301 ", "\u4e00", "."],
    split_sentences: [
        *("Two. ", "T. ", "Two.", ". ", "!", "! ", '!" ', "\u3002", "\u3002 ", "\u3002a", "Mr. "),
        *("a.b. ", "A! B ", "1. A ", "... A", "12. A", "e.g. A ", "ab.cd.ef.gh. A ", "((((", "/a."),
        *(("a!", " ", ""), ("a!", '"', ""), ("", "1", ". A"), ("\u3002", " ", ""), "Two. \ufdd0"),
        *(("Two is. A", " ", ""), ("Two is. A", "b ", ""), ("Two is. Three", " ", "A")),
    ],
    of_html: [
        *("<", "<a ", "<a b='", "<a b=\"' ", "<a =", "<b>a</b> ", "<!", "<!--", "<!-- --", "<!-->"),
        *("<script>", "</script", "<div translate=no>", "<p translate = ", "<a class='x", "&"),
        *("<a class='notranslate ", "&#x", "&nbsp;", " ", "<p>a", "<li>a", "<p a=b ", "<a " + "="),
        *("<li translate=no>", "<ul translate=no>", "<td translate=no><p></b></ol>"),
        *("<ul><li translate=no>a", "</b>", "<p><b>a</b>", "<ul><b><li>a</li>", "<table><td>a<tr>"),
        *(nested("<ul>", "<b>", "<li></li>"), nested("<ul><li>", "<b>", "</li><li>")),
        *(nested("", "<b>", "</b>"), nested("<code>", "<b>", "</i>")),
        *(("<p ", "translate ", ">"), ("<p ", "translate=", ">")),
        *(("<p translate", " ", ">"), ("<p translate='", "no ", ">")),
    ],
    functools.partial(translate, read=of_html): ["<p>Two. ", "a%s, ", "<b>{a}</b>. Go"],
    translate: ["Two. ", "%s ", "%s. A ", "1 %s 2 ", "a {b}, ", "\n", "`a` Go. \n"],
    split_tag: [">>", " ", ">>a<<", (">>", "a", "")],
    form: ["a", "a&", "q=a&", "=", "%C3%BC", "%", "+", "&"],
    functools.partial(form, boundary=b"a"): [
        *("\r", "\r\n", "\r\n-", "-", "--a", "--a\r\n\r\n\r\n", "--a\r\nA: b\r\n\r\n\r\n"),
        *(("--a\r\n\r\n", text, "\r\n--a--") for text in ("a", "\r", "\r\n--", "\r\n--ab")),
        *(("--a\r\n\r\n", text, "\r\n--a--") for text in ("\r\n--a-", "\r\n--a ", "\r\n--a\r")),
        *(("--a\r\n", text, "\r\n\r\n--a--") for text in ("A", "A:", "A: b\r\n", " ")),
        *(("--a\r\nContent-Type: ", text, "\r\n\r\n--a--") for text in (" ", ";", '";', "a=b;")),
        ("--a\r\n\r\n\r\n--a--", "\r\n--a", ""),
    ],
}  # fmt: skip
ROWS = [(read, text) for read, texts in TEXTS.items() for text in texts]


def made(text, size):
    if callable(text):
        return text(size)
    before, middle, behind = text if isinstance(text, tuple) else ("", text, "")
    return before + middle * (size // len(middle)) + behind


@pytest.mark.parametrize(("read", "text"), ROWS)
def test_time_grows_with_the_text(read, text):
    """Seconds of this thread; of a short text the least of several: others use the caches too."""
    read = protect(read) if isinstance(read, str) else read

    def seconds(size, repeat):
        whole = made(text, size)
        timer = timeit.Timer(lambda: read(whole), timer=time.thread_time)
        return min(timer.repeat(repeat, 1))

    # Quadratic time would be too much each time.
    measured = ((seconds(N, 5), seconds(TIMES * N, 1)) for _ in range(ATTEMPTS))
    assert any(long < MOST * short for short, long in measured)
