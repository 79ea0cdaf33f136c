// What the pages do beyond links and forms; all of them work without it.
(function () {
  "use strict";

  // The document of Airflow's UI around this page, when there is one that may be looked at.
  function around() {
    try {
      return window.parent === window ? null : window.parent.document;
    } catch {
      return null;
    }
  }

  const outer = around();

  // Airflow has a theme of its own, which may differ from the system's, and a ground that the page shall not stand out of.
  function followTheme() {
    const grounds = [outer.body, outer.documentElement].map((place) => getComputedStyle(place).backgroundColor);
    const ground = grounds.find((colour) => !/^rgba\(.*, 0\)$/.test(colour));
    if (ground) {
      document.documentElement.style.setProperty("--page", ground);
    }
    const theme = ["dark", "light"].find((name) => outer.documentElement.classList.contains(name));
    if (theme && document.documentElement.dataset.theme !== theme) {
      document.documentElement.dataset.theme = theme;
      document.dispatchEvent(new Event("themechange"));
    }
  }

  // The entry of Airflow's navigation leads to where this frame already is, and then does nothing: it shall lead to the
  // overview. The page around outlives this one, so what listens there goes with it.
  function followEntry() {
    const overview = document.querySelector(".trail a");
    const gone = new AbortController();
    window.addEventListener("pagehide", () => gone.abort());
    outer.addEventListener(
      "click",
      function (event) {
        const link = event.target.closest && event.target.closest("a[href]");
        if (link && overview && new URL(link.href).pathname.replace(/\/$/, "").endsWith("/plugin/faultline-results")) {
          location.assign(overview.href);
        }
      },
      { signal: gone.signal, capture: true }
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
    // A frame may not lead the window around it elsewhere, but a link of that window's own document may.
    event.preventDefault();
    const own = outer.createElement("a");
    own.href = link.href;
    outer.body.append(own);
    own.click();
    own.remove();
  });

  // A choice takes effect at once; the button is for pages without scripts.
  document.addEventListener("change", function (event) {
    const form = event.target.closest("form.choice");
    if (form && event.target.matches("select") && form.checkValidity() && !form.querySelector("input:not([type=hidden])")) {
      form.requestSubmit();
    }
  });

  // What changes by itself is asked for anew while somebody looks at it: the element of the same id takes its place, and
  // figures that are drawn get the new data. It ends where the new page has no such element, or asks for no more.
  function refresh(element) {
    const again = () => setTimeout(() => refresh(element), 1000 * (Number(element.dataset.every) || 4));
    if (document.hidden) {
      again();
      return;
    }
    fetch(element.dataset.refresh, { credentials: "same-origin" })
      .then((answer) => (answer.ok ? answer.text() : Promise.reject(new Error(answer.statusText))))
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
          location.reload(); // the first sample has come
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
