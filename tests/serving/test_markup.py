"""HTML that is translated: `html.parser` finds the same tags, and no text becomes one."""

import html
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.serving.markup import of_html, of_text


def translated(text, read=of_html, translate=str.upper):
    lines, fill = read(text)
    return fill([translate(line) for line in lines])


class Tags(HTMLParser):
    """The tags, comments and declarations of a document, as they stand there."""

    def __init__(self, text):
        super().__init__(convert_charrefs=False)
        self.found = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append(self.get_starttag_text())

    def handle_endtag(self, tag):
        self.found.append(f"</{tag}>")

    handle_comment = handle_decl = handle_pi = unknown_decl = lambda self, data: self.found.append(
        f"!{data}"
    )


# HTML -> its translation into upper case.
ROWS = [
    ("", ""),
    ("a\nb", "A\nB"),  # without markup, as text
    ("a < b & c > d, <3 <", "A < B & C > D, <3 <"),
    ("<p>a\n  b\tc</p>", "<p>A B C</p>"),
    ("<p>\n a <b> b</b>c\n</p>\n", "<p>\n A <b> B</b>C\n</p>\n"),
    ("a &lt;b&gt; &amp;amp; c", "A &lt;B&gt; &amp;AMP; C"),
    ("<i>a < b & c</i>", "<i>A &lt; B &amp; C</i>"),
    ("<b>a</b>&nbsp;b&emsp;<b>c</b>", "<b>A</b>\xa0B\u2003<b>C</b>"),
    ("<b>a&nbsp;b&#10;c</b>", "<b>A B C</b>"),
    ("<p>1 &lt; 2</p>&nbsp;<p>&hellip;</p>", "<p>1 &lt; 2</p>&nbsp;<p>&hellip;</p>"),
    ('<a title="a > b" alt=\'c > "d\'>e</a>', '<a title="a > b" alt=\'c > "d\'>E</a>'),
    ("<!-- a --> b <!--> c <!-- <i> --!> d", "<!-- a --> B <!--> C <!-- <i> --!> D"),
    ("<!DOCTYPE html><?php a ?>b</3 c>d", "<!DOCTYPE html><?php a ?>B</3 c>D"),
    ("<script>'<p>' < a</script >b", "<script>'<p>' < a</script >B"),
    ("<style>a {}</STYLE>b", "<style>a {}</STYLE>B"),
    ("<textarea>a <b></textarea>c", "<textarea>a <b></textarea>C"),
    ("<code>a <b>b</b> <code>c</code> d</code> e", "<code>a <b>b</b> <code>c</code> d</code> E"),
    ("<pre>a\n  b</pre>\nc", "<pre>a\n  b</pre>\nC"),
    ('<p translate="no">a <b>b</b></p>c', '<p translate="no">a <b>b</b></p>C'),
    ("<p\nTRANSLATE = 'NO'>a</p>b", "<p\nTRANSLATE = 'NO'>a</p>B"),
    ("<p translate=no>a</p>b<p translate>c</p>", "<p translate=no>a</p>B<p translate>C</p>"),
    ('<p translate="yes">a</p>b', '<p translate="yes">A</p>B'),
    ('<i id=x class="y notranslate z">a</i>b', '<i id=x class="y notranslate z">a</i>B'),
    ("<i class=notranslated>a</i>b", "<i class=notranslated>A</i>B"),
    ("a<img class=notranslate>b", "A<img class=notranslate>B"),
    ("a<x translate=no />b", "A<x translate=no />B"),
    ("<!-- translate=no -->a", "<!-- translate=no -->A"),
    ("<p translate=no>a</b>b", "<p translate=no>a</b>b"),  # never closed
    ('<p title="say translate=no please">a</p>', '<p title="say translate=no please">A</p>'),
    ("<p title='a class=\"notranslate\"'>a</p>", "<p title='a class=\"notranslate\"'>A</p>"),
    ('<p title="a"translate="no">a</p>b', '<p title="a"translate="no">a</p>B'),
    # End tags that may be left out.
    ("<li translate=no>a</p>b</li>c", "<li translate=no>a</p>b</li>C"),
    ("<ul><li translate=no>a<li>b</ul><p>c</p>", "<ul><li translate=no>a<li>B</ul><p>C</p>"),
    ("<ul><li translate=no>a</ul>b", "<ul><li translate=no>a</ul>B"),
    ("<li translate=no>a<ul><li>b<li>c</ul>d<li>e", "<li translate=no>a<ul><li>b<li>c</ul>d<li>E"),
    ("<li translate=no><b>a<p>b<div>c</div>d<li>e", "<li translate=no><b>a<p>b<div>c</div>d<li>E"),
    ("<p translate=no>a <b>b<p>c<p translate=no>d", "<p translate=no>a <b>b<p>C<p translate=no>d"),
    ("<p translate=no>a<ul><li>b</ul>", "<p translate=no>a<ul><li>B</ul>"),
    ("<div><p translate=no>a<br>b</div>c", "<div><p translate=no>a<br>b</div>C"),
    ("<p translate=no>a<hr>b", "<p translate=no>a<hr>B"),
    ("<tr><td translate=no>a<td>b<tr><th>c", "<tr><td translate=no>a<td>B<tr><th>C"),
    ("<tr translate=no><td>a<td>b<tr><td>c", "<tr translate=no><td>a<td>b<tr><td>C"),
    (
        "<td translate=no><table><tr><td>a</table>b<td>c",
        "<td translate=no><table><tr><td>a</table>b<td>C",
    ),
    ("<dl><dt translate=no>a<dd>b<dt>c</dl>", "<dl><dt translate=no>a<dd>B<dt>C</dl>"),
    (
        "<select><option translate=no>a<option>b</select>",
        "<select><option translate=no>a<option>B</select>",
    ),
    ("<div translate=no><p>a</div>b", "<div translate=no><p>a</div>B"),
    ('<b>a <i title="b', '<b>A <i title="b'),
    ("<ſ>a</b>", "&lt;S&gt;A</b>"),  # no letter of ASCII: text, which must not become a tag
]


@pytest.mark.parametrize(("text", "expected"), ROWS)
def test_text_between_tags_is_translated(text, expected):
    assert translated(text) == expected


SPACES = ["", " ", "\n", "\r\n", "&nbsp;", "\u3000"]
TEXTS = ["a", "B c", "é", "1", "&lt;b&gt;", "&amp;lt;", "&#60;i&#62;", "&", ">", "&quot;", "a < b"]
TAGS = [
    *("<p>", "</p>", "<B class='x'>", "</B>", '<a href="b>c" d=\'"\' e>', "</a\n>", "<br/>"),
    *("<!-- a <b> -->", "<!doctype html>", "<?php a ?>", "<code>", "</code>", "<i translate=no>"),
    *("</i>", "<script>if (a<b) '<p>'</script>", "<style>a > b {}</style>", "<img alt=''>"),
]
DOCUMENTS = st.lists(st.sampled_from(SPACES + TEXTS + TAGS), max_size=20).map("".join)
TRANSLATIONS = st.text() | st.sampled_from(["<b>", "</p>", "&lt;i&gt;", "<!--", "a < b", "<"])


@settings(max_examples=300)
@given(DOCUMENTS, st.functions(like=lambda line: "", returns=TRANSLATIONS))
def test_tags_stay_and_no_translation_becomes_one(text, translate):
    assert Tags(translated(text, translate=translate)).found == Tags(text).found


@settings(max_examples=300)
@given(st.lists(st.sampled_from(SPACES[:4] + TEXTS) | st.text(), max_size=9).map("".join))
def test_html_without_markup_is_translated_as_text(text):
    if html.unescape(text) == text and not Tags(text).found and "<" not in text.replace("< ", ""):
        assert translated(text) == translated(text, of_text)


@settings(max_examples=300)
@given(DOCUMENTS)
def test_what_is_not_translated_is_unchanged_but_for_spaces_and_escapes(text):
    same = translated(text, translate=str)
    assert html.unescape(same).split() == html.unescape(text).split()
