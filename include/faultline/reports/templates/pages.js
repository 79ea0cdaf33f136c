// Progressive enhancement: all pages work without this script.
(function () {
  "use strict";

  // Returns the document of Airflow's UI around this page, or null if missing or of another origin.
  function outerDocument() {
    try {
      return window.parent === window ? null : window.parent.document;
    } catch {
      return null;
    }
  }

  const outer = outerDocument();

  // Adopts Airflow's theme, which may differ from the system's, and its background.
  function followTheme() {
    const backgrounds = [outer.body, outer.documentElement].map((place) => getComputedStyle(place).backgroundColor);
    const background = backgrounds.find((colour) => !/^rgba\(.*, 0\)$/.test(colour));
    if (background) {
      document.documentElement.style.setProperty("--page", background);
    }
    const theme = ["dark", "light"].find((name) => outer.documentElement.classList.contains(name));
    if (theme && document.documentElement.dataset.theme !== theme) {
      document.documentElement.dataset.theme = theme;
      document.dispatchEvent(new Event("themechange"));
    }
  }

  // Airflow's navigation entry has no effect if this frame is open already, so it is redirected to the overview. The
  // outer page outlives this one, so its listener is removed with this page.
  function followEntry() {
    const overview = document.querySelector(".trail a");
    const unload = new AbortController();
    window.addEventListener("pagehide", () => unload.abort());
    outer.addEventListener(
      "click",
      function (event) {
        const link = event.target.closest && event.target.closest("a[href]");
        if (link && overview && new URL(link.href).pathname.replace(/\/$/, "").endsWith("/plugin/faultline-results")) {
          location.assign(overview.href);
        }
      },
      { signal: unload.signal, capture: true }
    );
  }

  if (outer) {
    followTheme();
    document.addEventListener("DOMContentLoaded", followEntry);
    new MutationObserver(followTheme).observe(outer.documentElement, { attributeFilter: ["class"] });
  }

  document.addEventListener("click", function (event) {
    const link = event.target.closest("a[data-airflow]");
    if (!link || !outer || event.ctrlKey || event.metaKey || event.shiftKey || event.button) {
      return;
    }
    // Frames must not navigate the outer window, but a link of the outer document may.
    event.preventDefault();
    const own = outer.createElement("a");
    own.href = link.href;
    outer.body.append(own);
    own.click();
    own.remove();
  });

  // Selections apply immediately; the button serves pages without scripts.
  document.addEventListener("change", function (event) {
    const form = event.target.closest("form.choice");
    if (form && event.target.matches("select") && form.checkValidity() && !form.querySelector("input:not([type=hidden])")) {
      form.requestSubmit();
    }
  });

  // Polls live content while the page is visible: replaces the element of the same id and updates its figures. Polling
  // stops if the new page lacks the element or its data-refresh attribute.
  function refresh(element) {
    const again = () => setTimeout(() => refresh(element), 1000 * (Number(element.dataset.every) || 4));
    if (document.hidden) {
      again();
      return;
    }
    fetch(element.dataset.refresh, { credentials: "same-origin" })
      .then((response) => (response.ok ? response.text() : Promise.reject(new Error(response.statusText))))
      .then(function (text) {
        const page = new DOMParser().parseFromString(text, "text/html");
        const fresh = page.getElementById(element.id);
        const data = page.getElementById("figures");
        if (!fresh) {
          element.remove();
          return;
        }
        element.innerHTML = fresh.innerHTML;
        if (data) {
          document.dispatchEvent(new CustomEvent("newfigures", { detail: JSON.parse(data.textContent) }));
        }
        if (data && !document.getElementById("figures")) {
          location.reload(); // the first sample is available
          return;
        }
        if (fresh.dataset.refresh) {
          again();
        }
      })
      .catch(again);
  }

  document.addEventListener("DOMContentLoaded", () => document.querySelectorAll("[data-refresh]").forEach(refresh));
})();
