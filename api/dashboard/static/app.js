// What pages do by themselves: times that stay right, copying, asking before what cannot be undone, and saying when
// the server is away. Everything else is links, forms and htmx attributes.
(() => {
  "use strict";

  const UNITS = [[86400 * 365, "year"], [86400 * 30, "month"], [86400, "day"], [3600, "hour"], [60, "minute"]];

  function ago(seconds) {
    for (const [length, unit] of UNITS) {
      if (Math.abs(seconds) >= length) {
        const number = Math.floor(Math.abs(seconds) / length);
        const words = `${number} ${unit}${number === 1 ? "" : "s"}`;
        return seconds > 0 ? `${words} ago` : `in ${words}`;
      }
    }
    return "just now";
  }

  function refreshTimes() {
    for (const time of document.querySelectorAll("time[datetime]")) {
      const shown = time.querySelector(".ago");
      const text = ago((Date.now() - Date.parse(time.dateTime)) / 1000);
      if (shown && shown.textContent !== text) shown.textContent = text;
    }
  }

  function showCopyButtons(root) {
    for (const button of root.querySelectorAll("[data-copy]")) button.hidden = !navigator.clipboard;
  }

  async function copy(button) {
    const source = button.closest(".copyable").querySelector("code");
    await navigator.clipboard.writeText(source.textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  }

  function setLost(isLost) {
    const notice = document.getElementById("lost");
    if (notice) notice.hidden = !isLost;
  }

  // Of a form with fields for several kinds of change, those of the chosen kind.
  function showFieldsOfChange(form) {
    const chosen = form.elements.namedItem("change").value;
    for (const field of form.querySelectorAll("[data-for]")) {
      field.hidden = !field.dataset.for.split(" ").includes(chosen);
    }
  }

  function prepare() {
    refreshTimes();
    showCopyButtons(document);
    for (const form of document.querySelectorAll("[data-change-form]")) showFieldsOfChange(form);
  }

  document.addEventListener("change", (event) => {
    const form = event.target.closest("[data-change-form]");
    if (form) showFieldsOfChange(form);
  });
  // Addresses say what is shown, and nothing about fields that were left empty.
  document.addEventListener("htmx:config:request", (event) => {
    const request = event.detail.ctx.request;
    if (request.method !== "GET" || !request.form) return;
    for (const [name, value] of [...request.body]) if (value === "") request.body.delete(name);
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (button) copy(button);
  });
  document.addEventListener("submit", (event) => {
    const question = event.submitter?.dataset.confirm ?? event.target.dataset.confirm;
    if (question && !window.confirm(question)) event.preventDefault();
  }, true);
  document.addEventListener("htmx:error", () => setLost(true));
  document.addEventListener("htmx:after:request", (event) => setLost(event.detail.ctx.response.status >= 500));
  document.addEventListener("htmx:after:swap", prepare);
  document.addEventListener("DOMContentLoaded", () => {
    prepare();
    document.getElementById("preview-panel")?.focus();
    setInterval(refreshTimes, 20000);
  });
})();
