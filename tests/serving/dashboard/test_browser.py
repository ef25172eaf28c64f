"""The dashboard in a real browser: what people see, by mouse, by keyboard and by ear."""

from __future__ import annotations

import re
import shutil

import httpx
import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait
from tests.serving.dashboard.served import QUESTION, TEXT, served
from tests.serving.site import MODEL, server_of, wait_until

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")

pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver")


@pytest.fixture(scope="module")
def url():
    with server_of(served()) as address:
        yield address


@pytest.fixture(scope="module")
def driver():
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.add_argument("--disable-background-networking")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield opened
    opened.quit()


@pytest.fixture
def page(driver, url):
    """The page as somebody finds it who has never been there; it must not have complained at the end."""
    driver.get(url)
    driver.execute_script("localStorage.clear(); sessionStorage.clear()")
    driver.get(url)
    yield driver
    assert [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"] == []


def seen(page, selector, check=lambda element: element.is_displayed()):
    """The element, as soon as it passes the check."""
    wait = WebDriverWait(page, 30, ignored_exceptions=[StaleElementReferenceException])
    return wait.until(lambda _: next(filter(check, page.find_elements(By.CSS_SELECTOR, selector)), None))


def is_wide(element):
    return element.size["width"] > 100


def says(text):
    return lambda element: text in element.text


def ask(url, **fields):
    """An answer to the question, by the API."""
    body = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, **fields}
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=30).json()


# --- live ---------------------------------------------------------------------------------------------------


def test_it_is_live_without_any_other_host(page, url):
    seen(page, "#state[data-state=live]")
    seen(page, "#about", says(MODEL))
    loaded = page.execute_script("return performance.getEntriesByType('resource').map(entry => entry.name)")
    assert loaded
    assert all(name.startswith(url) for name in loaded)


def test_charts_say_in_words_and_tables_what_they_draw(page, url):
    seen(page, "#state[data-state=live]")
    ask(url)
    seen(page, ".tile", lambda tile: "Acceptance" in tile.text and re.search(r"\d", tile.text))
    # Charts and tables are drawn anew all the time, so what is found is looked at while it is there.
    seen(page, ".canvas[role=img][aria-label*=Throughput][aria-label*=mean] canvas", is_wide)
    page.find_element(By.CSS_SELECTOR, ".chart summary").send_keys(Keys.ENTER)
    seen(page, ".chart tbody td", lambda cell: cell.is_displayed() and cell.text)
    page.find_element(By.ID, "say").click()
    seen(page, "#summary", says("Throughput"))


def test_every_control_has_a_name_that_can_be_heard(page):
    seen(page, "#state[data-state=live]")
    for tab in ("live", "requests", "chat"):
        page.find_element(By.ID, f"tab-{tab}").click()
        controls = page.find_elements(
            By.CSS_SELECTOR, "button, input, select, textarea, summary, [tabindex='0']"
        )
        shown = [control for control in controls if control.is_displayed()]
        assert shown
        assert [control.get_attribute("outerHTML") for control in shown if not control.accessible_name] == []


def test_tabs_follow_the_arrow_keys(page):
    page.find_element(By.ID, "tab-live").send_keys(Keys.ARROW_RIGHT)
    assert page.switch_to.active_element.get_attribute("id") == "tab-requests"
    assert page.find_element(By.ID, "requests").is_displayed()
    assert not page.find_element(By.ID, "live").is_displayed()
    page.switch_to.active_element.send_keys(Keys.END)
    assert page.find_element(By.ID, "message").is_displayed()
    page.refresh()
    assert seen(page, "#message")


def test_the_colour_scheme_is_the_systems_until_one_is_chosen(page):
    def theme():
        return page.execute_script("return document.documentElement.dataset.theme")

    def system(scheme):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    system("dark")
    wait_until(lambda: theme() == "dark")
    system("light")
    wait_until(lambda: theme() == "light")
    page.find_element(By.ID, "theme").click()
    page.refresh()
    assert theme() == "dark"


def test_nothing_is_wider_than_a_telephone(page, url):
    ask(url)
    metrics = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        for tab in ("live", "requests", "chat"):
            seen(page, f"#tab-{tab}").click()
            assert page.execute_script("return document.documentElement.scrollWidth") <= 360, tab
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


# --- requests -----------------------------------------------------------------------------------------------


def test_a_request_is_shown_round_by_round(page, url):
    seen(page, "#state[data-state=live]")
    page.find_element(By.ID, "tab-requests").click()
    lines = len(page.find_elements(By.CSS_SELECTOR, "#timelines tbody tr"))
    told = ask(url)
    spec = told["metrics"]["speculative_decoding"]
    seen(page, f"#timelines tbody tr:nth-child({lines + 1})")
    line = seen(page, "#timelines tbody tr:first-child", says("finished"))  # the newest comes first
    cells = [cell.text for cell in line.find_elements(By.TAG_NAME, "td")]
    assert int(cells[1]) == told["usage"]["completion_tokens"] - 1  # prefill made the first
    assert int(cells[2]) == sum(spec["blocks"].values())
    line.find_element(By.TAG_NAME, "button").send_keys(Keys.ENTER)
    seen(page, "#rounds details summary").click()
    rows = page.find_elements(By.CSS_SELECTOR, "#round-rows tr")
    assert len(rows) == len(page.find_elements(By.CSS_SELECTOR, "#round-bars .round")) == int(cells[2])
    verified = [int(row.find_elements(By.TAG_NAME, "td")[1].text) for row in rows]
    assert {str(block): verified.count(block) for block in verified} == spec["blocks"]


# --- playground ---------------------------------------------------------------------------------------------


def test_an_answer_is_coloured_and_the_same_as_plain_decoding(page):
    page.find_element(By.ID, "tab-chat").click()
    page.find_element(By.NAME, "compare").click()
    page.find_element(By.NAME, "block_size").send_keys("16")
    page.find_element(By.ID, "message").send_keys(QUESTION + Keys.ENTER)
    seen(page, ".same", says("the same"))
    answer = page.find_element(By.CSS_SELECTOR, ".turn.assistant .said")
    assert answer.get_property("textContent") == TEXT
    made = {token.get_attribute("class") for token in answer.find_elements(By.CSS_SELECTOR, ".token")}
    assert {"token o-accepted", "token o-reused", "token o-correction"} <= made
    rows = [row.text for row in page.find_elements(By.CSS_SELECTOR, ".runs tbody tr")]
    assert len(rows) == 2
    assert rows[1].startswith("plain AR")


def test_a_refusal_is_said_and_the_talk_goes_on(page):
    page.find_element(By.ID, "tab-chat").click()
    page.execute_script("document.getElementsByName('max_tokens')[0].value = 30000")
    page.find_element(By.ID, "message").send_keys(QUESTION + Keys.ENTER)
    error = seen(page, ".error")
    assert error.get_attribute("role") == "alert"
    assert "max_tokens" in error.text
    page.get_log("browser")  # the browser logs the refusal, too
    page.execute_script("document.getElementsByName('max_tokens')[0].value = 40")
    page.find_element(By.ID, "message").send_keys(QUESTION + Keys.ENTER)
    seen(page, ".runs")


# --- keys ---------------------------------------------------------------------------------------------------


def test_a_key_is_asked_for_until_it_fits(driver):
    with server_of(served(api_keys=("right",))) as address:
        driver.get(address)
        for key in ("wrong", "right"):
            field = seen(driver, "#key-field")
            assert field.get_attribute("type") == "password"
            field.send_keys(key + Keys.ENTER)
            wait_until(lambda field=field: not field.is_displayed())
        seen(driver, "#state[data-state=live]")
        seen(driver, "#about", says(MODEL))
        driver.get("about:blank")
    driver.get_log("browser")
