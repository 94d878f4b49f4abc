"use strict";
(() => {
  const form = document.getElementById("filter");
  const count = document.getElementById("count");
  const red = form.dataset.red.split(" ");
  const rows = [...document.querySelectorAll("tr.row")].map((line) => {
    const detail = line.nextElementSibling;
    return {
      line,
      detail,
      buttons: [...line.querySelectorAll("button")],
      area: line.dataset.area,
      statuses: line.dataset.statuses.split(" "),
      text: `${line.textContent} ${detail.textContent}`.toLowerCase(),
      isShown: true,
      current: null, // what of the detail was asked for: its own id for all of it, or a section's
    };
  });

  // A detail is seen when its row is, and when one of the row's buttons has opened it.
  const draw = (row) => {
    row.line.hidden = !row.isShown;
    row.detail.hidden = !row.isShown || row.current === null;
    for (const button of row.buttons) {
      const target = button.getAttribute("aria-controls");
      const isAll = target === row.detail.id;
      button.setAttribute("aria-expanded", String(row.current !== null && (isAll || target === row.current)));
    }
    for (const section of row.detail.querySelectorAll("section")) {
      section.classList.toggle("current", section.id === row.current);
    }
  };

  const open = (row, target) => {
    row.current = target;
    draw(row);
  };

  const press = (row, button) => {
    const target = button.getAttribute("aria-controls");
    const isOpen = button.getAttribute("aria-expanded") === "true";
    open(row, isOpen ? null : target);
    if (!isOpen) {
      document.getElementById(target).scrollIntoView({ block: "nearest" });
    }
  };

  const filter = () => {
    const { text, status, area } = Object.fromEntries(new FormData(form));
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = status === "red" ? red : [status];
    for (const row of rows) {
      row.isShown =
        words.every((word) => row.text.includes(word)) &&
        (!area || row.area === area) &&
        (!status || row.statuses.some((found) => wanted.includes(found)));
      draw(row);
    }
    for (const body of document.querySelectorAll(".matrix tbody")) {
      body.hidden = !body.querySelector("tr.row:not([hidden])");
    }
    count.textContent = `${rows.filter((row) => row.isShown).length} of ${rows.length} rows`;
  };

  const follow = () => {
    const id = decodeURIComponent(location.hash.slice(1));
    const row = rows.find((each) => each.line.id === id);
    if (row) {
      open(row, row.detail.id);
      row.line.scrollIntoView({ block: "center" });
    }
  };

  for (const row of rows) {
    for (const button of row.buttons) {
      button.addEventListener("click", () => press(row, button));
    }
  }
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  // The fields are reset after the event.
  form.addEventListener("reset", () => setTimeout(filter));
  document.getElementById("open").addEventListener("click", () => {
    rows.filter((row) => row.isShown).forEach((row) => open(row, row.detail.id));
  });
  document.getElementById("close").addEventListener("click", () => {
    rows.forEach((row) => open(row, null));
  });
  addEventListener("hashchange", follow);
  filter(); // a browser may have kept the fields of an earlier visit
  follow();
})();
