"""The page of the server in headless Chromium, against a stand-in for the server."""

import json
import shutil

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.actions.action_builder import ActionBuilder
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from tests.serving import page_server
from tests.waiting import SECONDS

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER),
    reason="Chromium is not installed: apt-get install chromium chromium-driver",
)
# As root in a container, without a network.
FLAGS = """--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-quic
--no-first-run --disable-background-networking --disable-component-update --disable-sync"""
HOSTILE = (
    "<img src=x onerror='hacked=1'></textarea></script><script>hacked=1</script> &amp; <b>b</b>"
)


class Page:
    """The page in a browser, as a reader uses it."""

    def __init__(self, browser, server):
        self.browser, self.server = browser, server

    def open(self):
        """Opens the page anew, with the pointer in its corner."""
        corner = ActionBuilder(self.browser, duration=0)
        corner.pointer_action.move_to_location(0, 0)
        corner.perform()
        self.browser.get(self.server.url + "/")
        self.wait(lambda: self.text("#model"))
        return self

    def wait(self, condition):
        return WebDriverWait(self.browser, SECONDS, 0.02).until(lambda _: condition())

    def run(self, script, *arguments):
        return self.browser.execute_script(script, *arguments)

    def find(self, selector):
        return self.browser.find_element("css selector", selector)

    def text(self, selector):
        return self.find(selector).text

    def each(self, selector, expression):
        """The value of a JavaScript expression for each element `e`."""
        elements = "[...document.querySelectorAll(arguments[0])]"
        return self.run(f"return {elements}.map((e) => {expression})", selector)

    def texts(self, selector):
        """The texts of all elements as they are in the document, before CSS and layout."""
        return self.each(selector, "e.textContent")

    def translations(self):
        return self.texts(".translation p:not(.note)")

    def insert(self, text):
        """Inserts text at the caret, all at once: the page translates it when a reader pauses."""
        self.find("#source").send_keys("")
        self.browser.execute_cdp_cmd("Input.insertText", {"text": text})

    def translate(self, text):
        """Inserts text, and waits for the translation of all lines and the details of the last."""
        self.insert(text)
        source = self.find("#source").get_property("value")
        expected = [page_server.translation(line) for line in source.split("\n")]
        self.wait(lambda: self.translations() == expected)
        self.wait_for_details(expected[-1])

    def wait_for_details(self, translation):
        tokens = [*translation.split(), "</s>"]
        self.wait(lambda: self.texts("#target-tokens .token") == tokens)
        self.wait(lambda: self.texts("#tree g.winner text")[:-1] == tokens[:-1])

    def press(self, *keys):
        ActionChains(self.browser, duration=0).send_keys(*keys).perform()

    def point_at(self, element):
        ActionChains(self.browser, duration=0).move_to_element(element).perform()

    def focused(self):
        """Id, or else class and text, of the element that has the focus."""
        element = self.browser.switch_to.active_element
        words = element.get_attribute("class"), element.text
        return element.get_attribute("id") or " ".join(filter(None, words))

    def set_width(self, width):
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def set_offline(self, offline):
        conditions = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        self.browser.execute_cdp_cmd(
            "Network.emulateNetworkConditions", {"offline": offline, **conditions}
        )

    def network_events(self, method):
        """Parameters of the events of this method since the last call of any log."""
        messages = (
            json.loads(row["message"])["message"] for row in self.browser.get_log("performance")
        )
        return [message["params"] for message in messages if message["method"] == method]


@pytest.fixture(scope="module")
def server():
    with page_server.StandIn() as server:
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in [*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options, Service(DRIVER))
    yield browser
    browser.quit()


@pytest.fixture
def page(browser, server):
    """A new page at desktop width; afterwards no error and no request to elsewhere is logged."""
    server.reset()
    page = Page(browser, server)
    page.set_width(1280)
    browser.get_log("performance")
    browser.get_log("browser")
    yield page.open()
    sent = page.network_events("Network.requestWillBeSent")
    urls = [each["request"]["url"] for each in sent]
    # The browser's own start page is chrome:, which no page can request.
    assert not [url for url in urls if not url.startswith((server.url + "/", "data:", "chrome"))]
    errors = [row["message"] for row in browser.get_log("browser") if row["level"] == "SEVERE"]
    # An answer of 4xx or 5xx is logged by the browser itself.
    assert [error for error in errors if "Failed to load resource" not in error] == []


def test_each_line_has_its_translation_and_all_are_copied(page):
    header = page.texts("#model, #source-name, #target-name")
    assert header == ["multi30k_en_de", "English", "German"]
    page.translate("a man\n\ntwo dogs\na man\n five\nsix\nseven")
    assert page.translations() == ["A MAN", "", "TWO DOGS", "A MAN", " FIVE", "SIX", "SEVEN"]
    assert page.text("#status") == "7 lines translated."
    asked = [inputs["text"] for name, inputs in page.server.requests if "n_best" in name]
    sent = [line for lines in asked for line in lines]
    assert sorted(sent) == sorted({"a man", "two dogs", " five", "six", "seven"}), "each line once"
    assert max(map(len, asked)) <= page_server.CARD["limits"]["max_lines"]

    grant = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    page.browser.execute_cdp_cmd("Browser.grantPermissions", grant)
    page.find("#copy").click()
    page.wait(lambda: "copied" in page.text("#status"))
    read = "navigator.clipboard.readText().then(arguments[0])"
    assert page.browser.execute_async_script(read) == "\n".join(page.translations())

    # What is not translated, or not as a whole, is flagged.
    page.open().insert("\n".join(["ab", "b" * 201, "c" * 101, "d"]))
    page.wait(lambda: page.translations() == ["AB", "", "C" * 101, "D"])
    assert page.texts(".note") == [
        "Longer than 200 characters: not translated.",
        "This line is too long for the model: its end is not translated.",
    ]
    assert page.text("#status") == "3 of 4 lines translated."
    nothing = {"translations": [[""]], "scores": [[None]], "truncated": [False]}
    some = {"translations": [["X"]], "scores": [[-0.1]], "truncated": [False]}
    for found, text, note in (
        (nothing, "", "The model gives no translation of this line."),
        (some, "X", "This translation is unfinished: it reached its maximum length."),
    ):
        answer = found | {"unfinished": [[found is some]]}
        page.server.signatures["translate_n_best"] = lambda text, answer=answer: answer
        page.open().insert("x")
        page.wait(lambda: page.texts(".note"))
        assert (page.translations(), page.texts(".note")) == ([text], [note])
        assert page.find("#details").is_displayed() == (found is some)


def test_selected_line_and_chosen_hypothesis_have_their_details(page):
    page.translate("a man\n\ntwo dogs")
    assert page.texts("#source-tokens .token") == ["two", "dogs", "</s>"]
    assert page.text("#line-name") == "Line 3 of 3"
    page.find("#line-0").click()
    page.wait_for_details("A MAN")
    assert page.texts("#source-tokens .token") == ["a", "man", "</s>"]
    assert page.text("#line-name") == "Line 1 of 3"
    page.press(Keys.ARROW_DOWN)
    page.wait_for_details("TWO DOGS")
    page.find("#source").send_keys(Keys.CONTROL, Keys.HOME)
    page.wait_for_details("A MAN")

    assert page.texts(".hypothesis .score") == ["−0.25", "−1.50"], "the missing one is left out"
    assert page.texts("mark") == ["AGAIN"]
    page.browser.find_elements("css selector", ".hypothesis")[1].click()
    page.wait(lambda: page.texts("#target-tokens .token") == ["A", "MAN", "AGAIN", "</s>"])
    assert page.each(".hypothesis", "e.ariaPressed") == ["false", "true"]


def test_pointing_shows_attention_and_the_path_of_a_prefix(page):
    page.translate("two dogs")
    assert len(page.texts("#arcs path")) == 3, "the strongest of each token"
    dogs = page.find("#target-tokens .token:nth-child(2)")
    page.point_at(dogs)
    assert page.text("#attention-readout") == "DOGS reads dogs 70 %, two 15 %, </s> 15 %"
    assert dogs.get_attribute("aria-label") == page.text("#attention-readout")
    weights = "Number(e.style.getPropertyValue('--weight'))"
    assert page.each("#source-tokens .token", weights) == pytest.approx([0.15, 0.7, 0.15])
    assert len(page.texts("#arcs path")) == 3
    page.point_at(page.find("#source-tokens .token"))
    assert page.text("#attention-readout") == "two is read by TWO 70 %, DOGS 15 %, </s> 15 %"
    page.press(Keys.ESCAPE)
    assert page.text("#attention-readout").startswith("Point at a token")
    page.find("[value=heat]").send_keys(Keys.SPACE)
    assert page.texts("#heat tbody td") == "70 15 15 15 70 15 15 15 70".split()

    page.translate(" run")
    assert page.texts("#tree g.winner text") == ["TWO", "DOGS", "RUN", "■ −2.00"]
    assert page.texts("#tree g.dropped text") == ["no"] * 4
    assert len(set(page.each("#tree g.winner text", "e.getAttribute('y')"))) == 1
    page.point_at(page.find("#tree g.dropped:nth-last-of-type(3)"))
    assert page.text("#tree-readout") == (
        "“TWO DOGS no”: log-probability −2.50, place 2 of 2, dropped after this step"
    )
    assert len(page.texts("#tree path.traced")) == 1, "the rest of its path is the winner's"


def test_page_is_used_by_keyboard_alone(page):
    page.translate("two dogs\na man")
    radio, source, target = "unseen", "token active a", "token active A"
    for expected in ["copy", "output", radio, source, target, "hypothesis A MAN\n−0.25"]:
        page.press(Keys.TAB)
        assert page.focused() == expected
        ringed = "(document.activeElement.closest('label') ?? document.activeElement)"
        assert "solid 2px" in page.run(f"return getComputedStyle{ringed}.outline")
    page.press(Keys.TAB, Keys.TAB)
    assert page.run("return document.activeElement.getAttribute('role')") == "treeitem"
    page.press(Keys.ARROW_RIGHT, Keys.ARROW_DOWN)
    assert "“A no”" in page.text("#tree-readout")
    page.press(Keys.ARROW_LEFT)
    assert "“A”" in page.text("#tree-readout")
    page.press(Keys.ESCAPE)
    assert page.focused() == "source"
    page.press(*[Keys.TAB] * 5, Keys.ARROW_RIGHT)
    assert page.text("#attention-readout").startswith("MAN reads man 70 %")


def test_answers_that_are_stale_late_refused_or_lost(page):
    page.server.hold.clear()
    page.insert("one")
    page.wait(lambda: page.server.requests)
    page.insert(" two")
    page.wait(lambda: len(page.server.requests) == 2)
    failed = []
    page.wait(lambda: failed.extend(page.network_events("Network.loadingFailed")) or failed)
    assert [event["canceled"] for event in failed] == [True], "the stale one is dropped"
    page.server.hold.set()
    page.translate(" three")
    texts = [inputs["text"] for name, inputs in page.server.requests if name == "translate_n_best"]
    assert texts == [["one"], ["one two"], ["one two three"]]

    page.server.failures = [(503, {"Retry-After": "1"})]
    page.translate(" four")
    assert page.text("#status") == "1 line translated.", "a busy server is asked again"

    page.server.failures = [(413, {})] * 2
    page.insert(" five")
    page.wait(lambda: "too long for this server" in page.text("#status"))
    assert page.find("#status").get_attribute("role") == "status"
    page.set_offline(True)
    page.insert(" six")
    page.wait(lambda: "does not answer" in page.text("#status"))
    page.set_offline(False)
    page.translate("")
    page.wait(lambda: page.text("#status") == "1 line translated.")

    page.server.requests.clear()
    page.server.failures = [(413, {})]
    page.open().insert("seven\neight\nnine")
    page.wait(lambda: page.translations() == ["SEVEN", "EIGHT", "NINE"])
    texts = [inputs["text"] for name, inputs in page.server.requests if name == "translate_n_best"]
    assert texts == [["seven", "eight", "nine"], ["seven", "eight"], ["nine"]]


def test_page_fits_each_model_and_no_text_becomes_html(page):
    page.translate("two dogs " * 8 + "a" * 19)
    for width in (390, 360):
        page.set_width(width)
        for view in ("heat", "arcs"):
            page.run(f"document.querySelector('[value={view}]').click()")
            assert page.run("return document.documentElement.scrollWidth") == width
    page.set_width(1280)

    page.server.card = {"model": page_server.CARD["model"], "source_language": "no code!"}
    page.open().translate("two dogs")
    assert page.texts("#source-name, #target-name") == ["no code!", "Translation"]
    page.press(Keys.ESCAPE)

    page.server.card = {**page_server.CARD, "target_languages": ["deu", "fra"]}
    page.open().insert("a dog")
    assert page.texts("#language option") == ["German", "French"]
    page.wait(lambda: page.translations() == [">>DEU<< A DOG"])
    page.find("#language").send_keys("French")
    page.wait(lambda: page.translations() == [">>FRA<< A DOG"])
    page.wait(lambda: ("search_tree", {"text": [">>fra<< a dog"]}) in page.server.requests)
    page.find("#source").send_keys(Keys.HOME)
    page.insert(">>deu<< ")
    page.wait(lambda: page.translations() == [">>DEU<< A DOG"])

    # Tokens of languages: no tag, and first in the menu is what the model was exported with.
    codes = {
        "source_languages": ["deu_Latn", "fra_Latn"],
        "target_languages": ["deu_Latn", "fra_Latn"],
    }
    search = {"beam_size": 4, "target_language": "fra_Latn"}
    page.server.card = {**page_server.CARD, **codes, "search": search}
    page.server.signatures["translate_n_best"] = lambda text, target_language: (
        page_server.translate_n_best([f"{target_language[0]} {line}" for line in text])
    )
    page.open().insert(">>deu<< a dog")
    page.wait(lambda: page.translations() == ["FRA_LATN >>DEU<< A DOG"])
    page.find("#language").send_keys("German")
    page.wait(lambda: page.translations() == ["DEU_LATN >>DEU<< A DOG"])

    # Tags, and a language of the export: another tag needs its language beside the line.
    codes = {"target_languages": ["deu", "fra"]}
    search = {"beam_size": 4, "target_language": "fra"}
    page.server.card = {**page_server.CARD, **codes, "search": search}
    page.open().insert("a dog")
    page.wait(lambda: page.translations() == ["FRA >>FRA<< A DOG"])
    page.find("#language").send_keys("German")
    page.wait(lambda: page.translations() == ["DEU >>DEU<< A DOG"])

    page.server.card = page_server.CARD | {"name": HOSTILE}
    page.server.signatures["translate_n_best"] = lambda text: {
        "translations": [[HOSTILE, "x " + HOSTILE]] * len(text),
        "scores": [[-0.1, -0.2]] * len(text),
        "truncated": [False] * len(text),
    }
    page.open().insert(HOSTILE)
    page.wait(lambda: page.texts("#tree text"))
    page.wait(lambda: page.texts(".token"))
    assert page.translations() == page.texts("#model") == [HOSTILE]
    assert page.texts(".hypothesis > [dir]") == [HOSTILE, "x " + HOSTILE]
    run = "return [typeof hacked, document.images.length, document.scripts.length]"
    assert page.run(run) == ["undefined", 0, 1]

    page.server.signatures = {"serving_default": page_server.translate}
    page.open().insert("two dogs")
    page.wait(lambda: page.translations() == ["TWO DOGS"])
    page.wait(lambda: not page.find("#tree").is_displayed())
    page.wait(lambda: not page.find("#attention").is_displayed())
    assert page.find("#n-best").is_displayed()
