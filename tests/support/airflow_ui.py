"""Page objects of Airflow's UI: login page, trigger form, results frame."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, FrameLocator, Locator, Page, expect

from faultline.installation.airflow import USER, password
from tests.support.installation import Installation

# Time for one step of the UI: three times the maximum on a busy two-core machine.
STEP_MS = 120_000
PLUGIN = "/plugin/faultline-results"
TOASTS = '[data-scope="toast"]'
# Section of parameters without an explicit one.
DEFAULT_SECTION = "Run Parameters"


@dataclass
class Ui:
    """A browser window on an installation, with the requests and console errors of its pages."""

    page: Page
    installation: Installation
    requests: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def root(self) -> str:
        return self.installation.settings.endpoints.airflow

    @property
    def results(self) -> FrameLocator:
        """The results frame."""
        return self.page.frame_locator("iframe[title=Results], iframe[title=Faultline]")

    @property
    def tab(self) -> Locator:
        """The tab "Results", distinguished from the link of that name in a run's note."""
        return self.page.get_by_role("link", name="Results", exact=True).and_(self.page.locator("a:not([target])"))

    @property
    def dialog(self) -> Locator:
        return self.page.get_by_role("dialog")

    @property
    def submit(self) -> Locator:
        """The button that triggers the run."""
        return self.page.get_by_test_id("trigger-dag-submit")

    def open(self, path: str) -> None:
        self.page.goto(self.root + path)

    def log_in(self) -> None:
        """Log in through the login page."""
        self.page.locator("input[name=username]").fill(USER)
        self.page.locator("input[name=password]").fill(password(self.installation.settings))
        self.page.locator("button[type=submit]").click()
        self.page.wait_for_url(lambda url: "/login" not in url)

    def foreign_requests(self) -> list[str]:
        """Return requested addresses outside the installation."""
        network = [url for url in self.requests if urlsplit(url).scheme not in ("data", "blob", "about")]
        return [url for url in network if f"{urlsplit(url).scheme}://{urlsplit(url).netloc}" != self.root]


@contextmanager
def window(browser: Browser, installation: Installation) -> Iterator[Ui]:
    """Yield a new window without login."""
    root = installation.settings.endpoints.airflow
    context = browser.new_context(viewport={"width": 1400, "height": 1000}, color_scheme="light", locale="en-US")
    context.set_default_timeout(STEP_MS)
    context.set_default_navigation_timeout(STEP_MS)
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=root)
    expect.set_options(timeout=STEP_MS)
    ui = Ui(context.new_page(), installation)

    def log_problem(message: ConsoleMessage) -> None:
        # Errors of other pages come from Airflow's UI itself.
        if message.type == "error" and "/faultline/" in message.location.get("url", ""):
            ui.problems.append(f"{message.location['url']}: {message.text}")

    context.on("request", lambda request: ui.requests.append(request.url))
    context.on("console", log_problem)
    context.on("weberror", lambda error: ui.problems.append(str(error.error)))
    yield ui
    context.close()


class Form:
    """The trigger form of one DAG. `params`: Airflow's value and JSON schema of each field."""

    def __init__(self, ui: Ui, dag_id: str, params: dict[str, Any]) -> None:
        self.ui = ui
        self.dag_id = dag_id
        self.params = params

    def open(self) -> None:
        """Open the form from the page of the DAG."""
        self.ui.open(f"/dags/{self.dag_id}")
        self.ui.page.get_by_test_id("trigger-dag-button").click()
        expect(self.ui.dialog).to_contain_text(self.dag_id)
        expect(self.ui.page.get_by_test_id("config-form")).to_be_visible()
        # An error message of the UI covers the form for a while and would receive the clicks.
        self.ui.page.add_style_tag(content=f"{TOASTS}, {TOASTS} * {{ pointer-events: none !important; }}")

    def fill(self, values: dict[str, Any]) -> None:
        """Fill fields section by section, since only one section is open at a time."""
        sections = dict.fromkeys(self._section(name) for name in values)
        for section in sections:
            head = self.ui.dialog.get_by_role("button", name=section, exact=True)
            if head.get_attribute("aria-expanded") != "true":
                head.click()
            for name, value in values.items():
                if self._section(name) == section:
                    self._fill(name, value)

    def send(self) -> tuple[int, dict[str, Any]]:
        """Submit the form; return status and content of the response."""
        with self.ui.page.expect_response(
            lambda answer: answer.request.method == "POST" and answer.url.endswith("/dagRuns")
        ) as answer:
            self.ui.submit.click()
        return answer.value.status, answer.value.json()

    @property
    def complaints(self) -> Locator:
        """Validation messages of the form."""
        return self.ui.dialog.locator("[data-scope=field][data-part=error-text]")

    def _section(self, name: str) -> str:
        return str(self.params[name]["schema"].get("section") or DEFAULT_SECTION)

    def _fill(self, name: str, value: Any) -> None:
        """Fill a field; its type, or the item type of a list, determines the widget."""
        schema, page = self.params[name]["schema"], self.ui.page
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        kind = next(one for one in types if one != "null")
        if kind == "boolean":
            if page.locator(f"input[name=element_{name}]").is_checked() != value:
                page.locator(f'[id="switch:element_{name}"]').click()
        elif kind == "array" and schema["items"]["type"] == "string":
            page.locator(f"textarea[name=element_{name}]").fill("\n".join(value))
            page.locator(f"textarea[name=element_{name}]").blur()
        elif kind in ("array", "object"):
            self.paste(name, "" if value is None else json.dumps(value))
        elif "enum" in schema:
            if value is None:
                return  # already empty
            page.locator(f"#element_{name}").click()
            page.get_by_role("option", name=value, exact=True).click()
        else:
            page.locator(f"input[name=element_{name}]").fill("" if value is None else str(value))

    def paste(self, name: str, text: str) -> None:
        """Replace the text of an editor by pasting, since the editor completes typed brackets."""
        page, editor = self.ui.page, self.ui.page.locator(f"#element_{name}")
        editor.locator(".view-lines").click()
        page.keyboard.press("Control+A")
        if text:
            page.evaluate("text => navigator.clipboard.writeText(text)", text)
            page.keyboard.press("Control+V")
        else:
            page.keyboard.press("Delete")


def call(installation: Installation, token: str, method: str, path: str, body: Any = None) -> Any:
    """Call Airflow's REST API; raise unless it succeeds."""
    import urllib.request

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(
        f"{installation.settings.endpoints.airflow}/api/v2{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Accept": "application/json", "Authorization": f"Bearer {token}"},
    )
    with opener.open(request, timeout=60) as answer:
        text = answer.read()
    return json.loads(text) if text else None
