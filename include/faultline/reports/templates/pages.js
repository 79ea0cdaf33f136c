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

  if (outer) {
    followTheme();
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
    if (form && event.target.matches("select") && form.checkValidity() && !form.querySelector("input")) {
      form.requestSubmit();
    }
  });
})();
