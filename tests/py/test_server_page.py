"""The page of `quire serve` in Chromium, driven by Selenium. Against a stand-in for the server (page_mock.py), or against any
server: QUIRE_PAGE_URL=http://127.0.0.1:8080/ (QUIRE_PAGE_KEY: its API key). Cases that need the stand-in are then skipped."""

import contextlib
import json
import os
import shutil
import socket
import time
import urllib.parse

import pytest

import page_mock

try:
    from selenium import webdriver
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait
except ImportError:
    webdriver = None

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
URL = os.environ.get("QUIRE_PAGE_URL")
pytestmark = pytest.mark.skipif(not (webdriver and CHROMIUM and DRIVER),
                                reason="selenium, chromium or chromedriver is missing: run tools/setup all")
PATIENCE = 120  # seconds: a slow machine, not a limit that a test is about


class Page:
    """A browser on the page, and the words that tests are written in."""

    def __init__(self, driver, url):
        self.driver, self.url = driver, url

    def open(self, url=None, width=1280, height=800):
        self.url = url or self.url
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})
        self.driver.get(self.url)
        self.js("sessionStorage.clear(); localStorage.clear()")
        if os.environ.get("QUIRE_PAGE_KEY"):
            self.js("sessionStorage.setItem('quire-key', arguments[0])", os.environ["QUIRE_PAGE_KEY"])
        self.console(), self.requests()  # what came before is forgotten
        self.driver.get(self.url)
        self.js("document.getElementById('temperature').value = 0")  # a real model answers alike each time
        return self

    def js(self, code, *arguments):
        return self.driver.execute_script(code, *arguments)

    def find(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector):
        return self.js("return document.querySelector(arguments[0])?.textContent ?? ''", selector)

    def wait(self, what):
        return WebDriverWait(self.driver, PATIENCE, .05).until(lambda _: what())

    def live(self):
        self.wait(lambda: self.text("#link") == "live")
        return self

    def send(self, question, limit=None):
        """limit: most tokens of this answer and of later ones; a real model may not find an end."""
        if limit:
            self.js("document.getElementById('max-tokens').value = arguments[0]", limit)
        self.find("#question").send_keys(question, Keys.ENTER)

    def answer(self):
        """The text of the last answer."""
        return self.js("return [...document.querySelectorAll('.text')].at(-1)?.textContent ?? ''")

    def figures(self):
        return self.js("return [...document.querySelectorAll('.figures')].at(-1)?.textContent ?? ''")

    def finished(self):
        self.wait(lambda: self.text("#send") == "Send")
        return self

    def focused(self):
        return self.js("return document.activeElement.id")

    def pages(self):
        """How many pages of each kind the legend counts."""
        return {kind: int(self.text(f"#count-{kind}").replace(",", "")) for kind in ("sealed", "shared", "open", "free")}

    def console(self):
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def requests(self):
        """The addresses that the browser asked for since the last call."""
        messages = (json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance"))
        return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]

    def is_sound(self):
        """Nothing was asked of anyone but the server, and nothing was complained about."""
        origin = urllib.parse.urlsplit(self.url).netloc
        outside = [u for u in self.requests() if urllib.parse.urlsplit(u).netloc != origin and not u.startswith("data:")]
        assert outside == []
        assert self.console() == []
        assert self.js("return violations") == []


@pytest.fixture(scope="module")
def driver():
    try:
        socket.getaddrinfo("localhost", None)
    except OSError as error:
        pytest.fail(f"Selenium asks for chromedriver at localhost, which this machine cannot resolve (/etc/hosts): {error}")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    # --no-sandbox: Chromium's own sandbox refuses to start as root, which is what containers run tests as.
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    # Not every violation of the page's Content-Security-Policy reaches the console.
    driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": """var violations = [];
        document.addEventListener('securitypolicyviolation', event => violations.push(event.violatedDirective))"""})
    yield driver
    driver.quit()


@contextlib.contextmanager
def served(driver, mock):
    """The page of a stand-in with that state."""
    server = page_mock.start(mock)
    yield Page(driver, f"http://127.0.0.1:{server.server_address[1]}/").open()
    driver.get("about:blank")  # no more requests
    server.shutdown()
    server.server_close()


@pytest.fixture
def mock():
    """The stand-in's state, for cases that need to look behind the page."""
    if URL:
        pytest.skip("not here: QUIRE_PAGE_URL names a real server")
    return page_mock.Mock()


@pytest.fixture
def mocked(driver, mock):
    with served(driver, mock) as page:
        yield page.live()


@pytest.fixture
def page(driver):
    """The page of the server under test."""
    if URL:
        yield Page(driver, URL).open().live()
        driver.get("about:blank")
    else:
        with served(driver, page_mock.Mock()) as page:
            yield page.live()


# ------------------------------------------------------------------ chat

def test_answer_streams(page):
    page.send("Count from one to two hundred. Make it long.")
    lengths = set()

    def grew():
        assert page.text("#send") == "Stop"
        lengths.add(len(page.answer()))
        return len(lengths) >= 5
    page.wait(grew)
    page.find("#question").send_keys(Keys.ESCAPE)
    page.finished()
    page.send("Say hello.", limit=16)
    page.finished()
    assert len(page.answer()) > 0
    assert "tokens" in page.figures() and "cached" in page.figures()
    assert page.text("#spoken").strip() == page.js("return chat.turns.at(-1).answer").strip()
    page.is_sound()


def test_stop(page):
    page.send("Count from one to five hundred. Make it long.")
    page.wait(lambda: len(page.answer()) > 20)
    page.find("#send").click()
    page.finished()
    length = len(page.answer())
    assert page.focused() == "question"
    assert "stopped" in page.figures()
    page.wait(lambda: "decoding" not in page.text("#sequence-rows"))
    assert len(page.answer()) == length
    page.is_sound()


def test_stop_reaches_the_server_and_the_conversation(mocked, mock):
    mocked.send("a long story")
    mocked.wait(lambda: len(mocked.answer()) > 20)
    mocked.find("#send").click()
    mocked.finished()
    mocked.wait(lambda: mock.counts["cancelled"] == 1)
    told = mocked.js("return chat.turns[0].answer")
    mocked.send("go on")
    mocked.finished()
    assert [m["content"] for m in mock.requests[-1]["messages"]] == ["a long story", told, "go on"]


def test_what_a_request_says(mocked, mock):
    mocked.find("#settings-button").click()
    mocked.find("#system").send_keys("Be brief.")
    for field, value in (("#temperature", "0"), ("#max-tokens", "7")):
        mocked.find(field).clear()
        mocked.find(field).send_keys(value)
    mocked.send("Hi")
    mocked.finished()
    assert mock.requests[-1] == {
        "model": "smollm2-135m", "stream": True, "stream_options": {"include_usage": True}, "temperature": 0, "max_tokens": 7,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]}
    assert "cut at max tokens" in mocked.figures() and "7 tokens" in mocked.figures()


def test_a_setting_that_is_wrong_is_not_sent(mocked, mock):
    mocked.find("#settings-button").click()
    mocked.find("#temperature").clear()
    mocked.find("#temperature").send_keys("9")
    mocked.find("#settings-button").click()
    mocked.send("Hi")
    assert mocked.focused() == "temperature" and mock.requests == []
    assert mocked.js("return document.getElementById('question').value") == "Hi"


def test_lines_retry_and_new_conversation(mocked, mock):
    mocked.find("#question").send_keys("one", Keys.SHIFT + Keys.ENTER, Keys.NULL, "two", Keys.ENTER)
    mocked.finished()
    assert mock.requests[-1]["messages"] == [{"role": "user", "content": "one\ntwo"}]
    mocked.find(".retry").click()
    mocked.wait(lambda: len(mock.requests) == 2)
    mocked.finished()
    assert mock.requests[0] == mock.requests[1] and len(mocked.all(".question")) == 1
    mocked.find("#new").click()
    assert mocked.all(".question") == [] and mocked.find("#welcome").is_displayed()
    assert mocked.focused() == "question"
    mocked.send("three")
    mocked.finished()
    assert mock.requests[-1]["messages"] == [{"role": "user", "content": "three"}]


def test_a_new_conversation_forgets_an_answer_that_still_comes(mocked, mock):
    mocked.send("a long story")
    mocked.wait(lambda: len(mocked.answer()) > 20)
    mocked.find("#new").click()
    mocked.wait(lambda: mock.counts["cancelled"] == 1)
    assert mocked.all(".question") == [] and mocked.text("#send") == "Send"
    mocked.is_sound()


def test_what_a_model_writes_is_text(mocked):
    mocked.send("What is a K/V cache?")
    mocked.finished()
    assert [e.text for e in mocked.all(".text strong")] == ["K/V cache"]
    assert len(mocked.all(".text ol li")) == 3 and len(mocked.all(".text ul li")) == 2
    assert mocked.text(".text pre").startswith("def pages(length):\n    sealed")
    assert '<img src=x onerror="' in mocked.answer() and "<b>tags</b>" in mocked.answer()
    assert mocked.all(".text img, .text b, .text script") == []
    assert mocked.driver.title == "Quire"
    mocked.is_sound()


MARKDOWN = [
    ("plain", "<p>plain</p>"),
    ("a\nb\n\nc", "<p>a\nb</p><p>c</p>"),
    ("`a **b**` and **c `d`**", "<p><code>a **b**</code> and <strong>c `d`</strong></p>"),
    ("2 * 3 * 4 ** 5, a*b", "<p>2 * 3 * 4 ** 5, a*b</p>"),
    ("*so* and **so**", "<p><em>so</em> and <strong>so</strong></p>"),
    ("- a\n- b\n  more\n\ntext", "<ul><li>a</li><li>b\nmore</li></ul><p>text</p>"),
    ("3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'),
    ("### Head\ntext", "<h3>Head</h3><p>text</p>"),
    ("```c\nint *a;\n\n- x\n```\nafter", "<pre>int *a;\n\n- x</pre><p>after</p>"),
    ("```\nnot closed", "<pre>not closed</pre>"),
    ("````\n```\n````", "<pre>```</pre>"),
    ("<script>alert(1)</script>", "<p>&lt;script&gt;alert(1)&lt;/script&gt;</p>"),
]


@pytest.mark.parametrize("source, expected", MARKDOWN)
def test_markdown_at_once_and_as_it_grows(page, source, expected):
    shown = page.js("""
        const html = node => {
            const copy = node.cloneNode(true);
            for (const block of copy.querySelectorAll('.block')) block.replaceWith(make('pre', {}, block.querySelector('code').textContent));
            return copy.innerHTML;
        };
        const whole = make('div'), grown = make('div'), source = arguments[0];
        renderMarkdown(whole, source);
        for (let n = 1; n <= source.length; n++) renderMarkdown(grown, source.slice(0, n));
        return [html(whole), html(grown)];""", source)
    assert shown == [expected, expected]


# ------------------------------------------------------------------ errors, in words

def test_busy_says_when_to_come_back(mocked, mock):
    mock.refusal = (429, "16 requests wait already.", [("Retry-After", "7")])
    mocked.send("Hi")
    mocked.finished()
    fault = mocked.find("#turns .fault")
    assert "in 7 seconds" in fault.text and "16 requests wait already." in fault.text
    mocked.find(".retry").click()
    mocked.wait(lambda: len(mock.requests) == 1)
    mocked.finished()
    assert mocked.all("#turns .fault") == [] and len(mocked.answer()) > 0


def test_a_refused_question_is_left_out_of_the_next_request(mocked, mock):
    mock.refusal = (413, "The prompt has 9000 tokens; the cache holds 8192.", [])
    mocked.send("too long")
    mocked.finished()
    assert "9000 tokens" in mocked.find("#turns .fault").text
    mocked.send("Hi")
    mocked.finished()
    assert mock.requests[-1]["messages"] == [{"role": "user", "content": "Hi"}]


def test_a_server_that_is_gone(driver, mock):
    server = page_mock.start(mock)
    page = Page(driver, f"http://127.0.0.1:{server.server_address[1]}/").open().live()
    server.shutdown()
    server.server_close()
    page.wait(lambda: page.text("#link") == "no connection")
    page.send("Hi")
    page.wait(lambda: page.all("#turns .fault"))
    assert "cannot be reached" in page.find("#turns .fault").text


def test_key(driver, mock):
    mock.key = "secret"
    with served(driver, mock) as page:
        page.wait(lambda: page.text("#link") == "locked")
        page.send("Hi")
        page.wait(lambda: page.focused() == "key-field")
        page.find("#key-field").send_keys("wrong", Keys.ENTER)
        page.wait(lambda: page.focused() == "key-field" and page.all("#turns .fault"))
        page.find("#key-field").clear()
        page.find("#key-field").send_keys("secret", Keys.ENTER)
        page.wait(lambda: len(page.answer()) > 20)
        page.live()
        assert page.js("return [sessionStorage.getItem('quire-key'), localStorage.length]") == ["secret", 0]
        assert all("secret" not in address for address in page.requests())
        page.driver.refresh()
        page.live()  # the key is still known


# ------------------------------------------------------------------ dashboard

def picture(page):
    return page.js("return document.getElementById('map').toDataURL()")


def test_map_changes_with_an_answer(page):
    before, image = page.pages(), picture(page)
    page.send("Count from one to two hundred. Make it long.")
    page.wait(lambda: page.pages()["open"] > before["open"] and picture(page) != image)
    assert "decoding" in page.text("#sequence-rows") or "prefill" in page.text("#sequence-rows")
    page.wait(lambda: page.pages()["sealed"] + page.pages()["shared"] > before["sealed"] + before["shared"])
    page.find("#send").click()
    page.is_sound()


def test_figures_add_up(mocked, mock):
    mock.end(mock.begin("k4v4", 640, 0, 0))
    running = mock.begin("k4v4", 700, 640, 0)
    mocked.wait(lambda: mocked.pages()["shared"] == 10)
    assert mocked.pages() | {"free": 0} == {"sealed": 10, "shared": 10, "open": 2, "free": 0}
    cache = mock.stats()["caches"][0]
    held, bf16 = sum(cache["bytes"][k] for k in ("sealed", "open", "last_raw", "sinks")), 1340 * cache["bf16_token_bytes"]
    assert mocked.text("#ratio") == f"{bf16 / held:.2f}×"
    assert mocked.pages()["free"] == cache["bytes"]["free"] // cache["page_bytes"]
    assert mocked.text("#resident") == f"{held / 2**20:.2f} MiB" and mocked.text("#bf16") == f"{bf16 / 2**20:.1f} MiB"
    assert mocked.text("#hits") == f"{round(640 / 1340 * 100)} %"
    assert mocked.text("#running") == "1"
    rows = [[cell.text for cell in row.find_elements(By.TAG_NAME, "td")] for row in mocked.all("#sequence-rows tr")]
    assert rows == [[str(running["job"]), "decoding", "700", "640", "700", "11"],
                    ["–", "kept prefix", "640", "0", "640", "11"]]  # what runs comes first


def test_bf16_is_charged_for_windows_only(mocked, mock):
    """A layer with a window of 512 would hold no more in bf16 either."""
    mock.begin("k4v4", 640, 0, 0)
    mocked.wait(lambda: mocked.text("#running") == "1")
    whole = 640 * page_mock.BF16_TOKEN / 2**20
    assert mocked.text("#bf16") == f"{whole:.1f} MiB"
    stats = mock.caches[0].stats

    def windowed():
        answer = stats()
        for layer in answer["layers"][::2]:
            layer["window"] = 512
        return answer
    mock.caches[0].stats = windowed
    mocked.wait(lambda: mocked.text("#bf16") == f"{whole * (640 + 512) / 1280:.1f} MiB")


def test_sealed_pages_are_those_in_memory(mocked, mock):
    """Two kept prefixes with 6 pages in common, which nobody says but the bytes."""
    mock.end(mock.begin("k4v4", 640, 0, 0))
    mock.end(mock.begin("k4v4", 640, 0, 0))
    stats = mock.caches[0].stats

    def common():
        answer = stats()
        answer["bytes"]["sealed"] -= 6 * answer["page_bytes"]
        return answer
    mock.caches[0].stats = common
    mocked.wait(lambda: mocked.pages()["sealed"] == 14)
    assert mocked.pages()["shared"] == 6


def test_map_by_keyboard_and_mouse(mocked, mock):
    mock.begin("k4v4", 640, 0, 0)
    mock.begin("k4v4", 100, 64, 0)
    mocked.wait(lambda: mocked.pages()["sealed"] == 10)
    assert mocked.js("return map.cells.length") == 13 + mocked.pages()["free"]
    canvas = mocked.find("#map")
    mocked.js("arguments[0].focus({focusVisible: true})", canvas)
    canvas.send_keys(Keys.HOME)
    assert mocked.text("#detail") == "Job 1, decoding: page 1 of 11, sealed, tokens 0 to 63."
    canvas.send_keys(Keys.PAGE_DOWN)
    assert mocked.text("#detail") == "Job 2, decoding: page 1 of 2, shared, tokens 0 to 63."
    canvas.send_keys(Keys.RIGHT)
    assert mocked.text("#detail") == "Job 2, decoding: page 2 of 2, open, 36 of 64 tokens."
    canvas.send_keys(Keys.END)
    assert mocked.text("#detail").startswith("Free: ")
    mocked.find("#question").click()
    mocked.js("""const box = arguments[0].getBoundingClientRect();
        arguments[0].dispatchEvent(new PointerEvent('pointermove', {clientX: box.left + 10.5 * map.pitch, clientY: box.top + map.pitch / 2}))""",
              canvas)
    assert mocked.text("#detail") == "Job 1, decoding: page 11 of 11, open, 0 of 64 tokens."


@pytest.mark.parametrize("n_pages", [10, 20000])
def test_map_of_any_size(driver, mock, n_pages):
    mock.caches[0].n_pages = n_pages
    mock.begin("k4v4", 300 if n_pages == 10 else 300000, 0, 0)
    with served(driver, mock) as page:
        page.live()
        cells, per_cell, height = page.js("return [map.cells.length, map.perCell, map.height]")
        total = sum(page.pages().values())
        assert total / per_cell <= cells <= total / per_cell + 3 and height <= 340
        assert per_cell == 1 if n_pages == 10 else f"one cell is {per_cell} pages" in page.text("#scale")
        page.is_sound()


def test_several_caches(driver, mock):
    mock = page_mock.Mock(("k4v4", "k8v8"))
    with served(driver, mock) as page:
        page.live()
        page.find("#settings-button").click()
        page.find("#codec").send_keys("k8v8")
        page.send("Make it long.")
        page.wait(lambda: len(page.answer()) > 20)
        assert mock.requests[-1]["kv"] == "k8v8"
        assert page.find("#caches [aria-pressed=true]").text == "k8v8"  # the one in use is shown
        page.wait(lambda: page.pages()["open"] == 1)
        assert "kc8:vt8" in page.text("#layers-words")
        page.find("#caches button").send_keys(Keys.ENTER)
        assert page.find("#caches [aria-pressed=true]").text == "k4v4" and page.pages()["open"] == 0


def test_fallbacks_are_a_warning(mocked, mock):
    assert not mocked.find("#notice").is_displayed()
    stats = mock.caches[0].stats

    def bad():
        answer = stats()
        answer["layers"][3]["fallbacks"] = 12
        return answer
    mock.caches[0].stats = bad
    mocked.wait(lambda: "12 units" in mocked.text("#notice"))
    assert mocked.find("#notice").is_displayed()
    assert len(mocked.all("#layer-rows tr.warn")) == 1


def test_places_of_the_store(mocked, mock):
    """A table if there are any; one that fails is a warning until it works again."""
    mocked.wait(lambda: mocked.text("#server-words"))
    assert not mocked.find("#places").is_displayed()
    place = {"hit_records": 1234, "written_records": 7, "dropped_records": 5, "queued_bytes": 2048, "errors": 3,
             "failing": False, "error": ""}
    failing = {**place, "place": "redis://cache", "failing": True, "error": "<b>it</b> is dead"}
    mock.tiers = [{**place, "place": "mem:64M"}, failing]
    mocked.wait(lambda: "redis://cache" in mocked.text("#notice"))
    mocked.find("#places summary").click()
    assert mocked.text("#places-words") == "2 places, 1 failing"
    rows = [[cell.text for cell in row.find_elements("css selector", "td")] for row in mocked.all("#place-rows tr")]
    assert rows == [["mem:64M", "1,234", "7", "5", "2.00 KiB", "3", "works"],
                    ["redis://cache", "1,234", "7", "5", "2.00 KiB", "3", "<b>it</b> is dead"]]
    mock.tiers = [{**failing, "failing": False, "error": ""}]
    mocked.wait(lambda: mocked.text("#notice") == "")


def test_sizes_of_the_store(mocked, mock):
    """Nobody counts what a Redis server holds."""
    mocked.wait(lambda: mocked.text("#server-words"))
    counts = {"hit_pages": 4, "missed_pages": 3, "added_pages": 2}
    mock.store = {**counts, "pages": 7, "bytes": 2048, "file_bytes": 4096, "max_bytes": 8192, "evicted_pages": 1}
    mocked.wait(lambda: "7 pages, 2.00 KiB" in mocked.text("#server-pairs"))
    words = mocked.text("#server-pairs")
    assert "Store file4.00 KiB of 8.00 KiB" in words and "misses4, 3" in words and "evicted2, 1" in words
    mock.store = {**dict.fromkeys(mock.store), **counts}
    mocked.wait(lambda: "in Redis" in mocked.text("#server-pairs"))
    words = mocked.text("#server-pairs")
    assert "Store file–" in words and "misses4, 3" in words and "evicted2, –" in words


def test_a_hidden_page_asks_nothing(page):
    page.js("""Object.defineProperty(document, 'hidden', {get: () => true, configurable: true});
        document.dispatchEvent(new Event('visibilitychange'))""")
    page.wait(lambda: page.text("#link") == "paused" and page.js("return !board.polling"))
    page.requests()
    time.sleep(2.5)
    assert page.requests() == []
    page.js("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    page.live()


# ------------------------------------------------------------------ looks

# Texts whose contrast with what is behind them is below WCAG's AA, as "ratio: text".
LOW_CONTRAST = """
const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
const light = colour => numbers(colour).slice(0, 3).map(c => c / 255).map(c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
const behind = element => {
    for (; element; element = element.parentElement) {
        const colour = getComputedStyle(element).backgroundColor;
        if ((numbers(colour)[3] ?? 1) === 1) return colour;
    }
};
const low = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility() || element.closest('script, .unseen')) continue;
    const style = getComputedStyle(element), [a, b] = [light(style.color), light(behind(element))];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05), large = parseFloat(style.fontSize) >= 24;
    if (ratio < (large ? 3 : 4.5)) low.push(ratio.toFixed(2) + ': ' + walker.currentNode.data.trim());
}
return low;"""


def test_dark_and_light(page):
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "light"}]})
    page.js("for (const details of document.querySelectorAll('details')) details.open = true; showSettings(true)")
    page.send("Say hello.", limit=16)
    page.finished()

    def back():
        return page.js("return getComputedStyle(document.body).backgroundColor")
    light, image = back(), page.js("return document.querySelector('.legend canvas').toDataURL()")
    assert page.js(LOW_CONTRAST) == []
    page.find("#theme").click()
    assert back() != light and page.find("#theme").get_attribute("aria-pressed") == "true"
    assert page.js("return document.querySelector('.legend canvas').toDataURL()") != image
    assert page.js(LOW_CONTRAST) == []
    dark = back()
    page.driver.refresh()
    page.live()
    assert back() == dark  # remembered
    page.find("#theme").click()
    assert back() == light
    page.js("localStorage.clear()")
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]})
    page.driver.refresh()
    page.live()
    assert back() == dark  # as the system has it
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    page.is_sound()


def test_everything_by_keyboard(page):
    """Tab comes to everything that can be operated, in the order of the page, and it shows where it is."""
    page.find("#settings-button").send_keys(Keys.ENTER)
    assert page.find("#settings").is_displayed()
    wanted = page.js("""
        const all = document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex="0"]');
        return [...all].filter(e => e.checkVisibility() && e.tabIndex >= 0).map((e, i) => (e.dataset.stop = i, e.id || e.textContent.slice(0, 20)))""")
    page.js("document.activeElement.blur(); getSelection().removeAllRanges(); document.body.tabIndex = -1; document.body.focus()")
    reached = []
    for _ in wanted:
        page.driver.switch_to.active_element.send_keys(Keys.TAB)
        stop, shown = page.js("""const e = document.activeElement, box = e.closest('.box') ?? e;
            return [Number(e.dataset.stop ?? -1), [e, box].some(x => getComputedStyle(x).outlineStyle !== 'none')]""")
        reached.append(stop)
        assert shown, f"no focus to be seen on {wanted[stop]}"
    assert reached == list(range(len(wanted))), wanted
    assert {"question", "send", "map", "theme", "new"} <= set(wanted)
    page.js("document.getElementById('max-tokens').value = 16")
    page.find("#question").send_keys("Say hello.", Keys.TAB, Keys.TAB, Keys.TAB)
    assert page.focused() == "send"
    page.driver.switch_to.active_element.send_keys(Keys.ENTER)
    page.wait(lambda: len(page.all(".question")) == 1)
    page.finished()
    page.is_sound()


def test_every_field_has_a_name(page):
    nameless = page.js("""return [...document.querySelectorAll('button, input, select, textarea, canvas[tabindex], [role=region]')]
        .filter(e => !e.ariaLabel && !e.labels?.length && !e.textContent.trim()).map(e => e.outerHTML)""")
    assert nameless == []


def test_buttons_can_be_hit(page):
    page.send("Say hello.", limit=16)
    page.finished()
    small = page.js("""return [...document.querySelectorAll('button')].filter(e => e.checkVisibility()).map(e => [e, e.getBoundingClientRect()])
        .filter(([, box]) => box.width < 24 || box.height < 24).map(([e, box]) => `${e.textContent || e.id} ${box.width} x ${box.height}`)""")
    assert small == []


@pytest.mark.parametrize("width, height", [(360, 640), (390, 844), (768, 1024)])
def test_narrow_screens(page, width, height):
    page.open(width=width, height=height).live()

    def fits():
        return page.js("return [document.documentElement.scrollWidth <= innerWidth, document.documentElement.scrollHeight <= innerHeight]") \
            == [True, True]
    assert page.find("#question").is_displayed() and not page.find("#map").is_displayed()
    page.find("#settings-button").click()
    assert fits()
    page.find("#settings-button").click()
    page.send("What is a K/V cache? " + "x" * 200)
    page.wait(lambda: len(page.answer()) > 20)
    page.find("#question").send_keys(Keys.ESCAPE)
    page.finished()
    assert fits() and page.js("const t = document.getElementById('turns'); return t.scrollWidth <= t.clientWidth")
    page.find("[data-view=cache]").click()
    assert page.find("#map").is_displayed() and not page.find("#question").is_displayed()
    page.js("for (const details of document.querySelectorAll('details')) details.open = true")
    page.wait(lambda: page.js("return map.cells.length > 0 && document.getElementById('map').width > 300"))
    assert fits() and page.js("const c = document.getElementById('cache'); return c.scrollWidth <= c.clientWidth")
    page.is_sound()


def test_nothing_moves_while_an_answer_streams(page):
    page.send("Say hello.", limit=16)
    page.finished()
    page.send("Count from one to two hundred. Make it long.", limit=400)
    page.wait(lambda: len(page.answer()) > 5)
    height = "return document.querySelector('article:last-of-type .foot').getBoundingClientRect().height"
    composer = "return JSON.stringify(document.getElementById('composer').getBoundingClientRect())"
    cards = "return JSON.stringify([...document.querySelectorAll('#cache > .card, .tiles .card')].slice(0, 6).map(e => e.getBoundingClientRect()))"
    first = [page.js(code) for code in (height, composer, cards)]
    seen = len(page.answer())
    page.wait(lambda: len(page.answer()) > seen + 100 or page.text("#send") == "Send")
    assert [page.js(code) for code in (height, composer, cards)] == first
    page.find("#send").click()
    page.finished()
    assert [page.js(code) for code in (height, composer, cards)] == first
