"use strict";
{
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const labels = JSON.parse(document.getElementById("labels").textContent);

  // --- light and dark

  const theme = document.getElementById("theme");
  const isDark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const remembered = {
    get: () => { try { return localStorage.getItem("bakeoff-theme"); } catch { return null; } },  // a file may have no storage
    set: (value) => { try { localStorage.setItem("bakeoff-theme", value); } catch { /* it lasts for this visit then */ } },
  };
  const showTheme = () => { theme.textContent = isDark() ? "Light theme" : "Dark theme"; };
  if (["light", "dark"].includes(remembered.get())) document.documentElement.dataset.theme = remembered.get();
  theme.hidden = false;
  theme.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    remembered.set(document.documentElement.dataset.theme);
    showTheme();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showTheme);
  showTheme();

  // --- tables: rows unfold, columns sort, a filter hides

  const detailsOf = (row) => row.nextElementSibling;
  const fold = (row, open) => {
    row.querySelector(".unfold").setAttribute("aria-expanded", String(open));
    detailsOf(row).hidden = !open || row.hidden;
  };
  const isOpen = (row) => row.querySelector(".unfold").getAttribute("aria-expanded") === "true";

  const sortKey = (row, column) => {
    const text = row.cells[column].dataset.sort;
    if (text === undefined) return null;
    return text.trim() !== "" && Number.isFinite(Number(text)) ? Number(text) : text;
  };
  const compare = (one, other) => typeof one === "number" && typeof other === "number" ? one - other : String(one).localeCompare(String(other), "en", { numeric: true });

  const sortBy = (table, header) => {
    const column = header.cellIndex;
    const direction = header.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    all("th[aria-sort]", table).forEach((other) => other.removeAttribute("aria-sort"));
    header.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
    const rows = all("tr.cell", table).map((row, place) => ({ row, place, key: sortKey(row, column) }));
    rows.sort((one, other) => {
      if (one.key === null || other.key === null) return (one.key === null) - (other.key === null) || one.place - other.place;
      return direction * compare(one.key, other.key) || one.place - other.place;
    });
    for (const { row } of rows) table.tBodies[0].append(row, detailsOf(row));
  };

  const filter = (table, tools) => {
    const words = tools.querySelector(".filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const status = tools.querySelector(".status-filter")?.value ?? "";
    const rows = all("tr.cell", table);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word)) || (status !== "" && row.dataset.status !== status);
      fold(row, isOpen(row));
    }
    tools.querySelector(".count").textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
  };

  for (const table of all("table.cells")) {
    const tools = document.querySelector(`.tools[data-for="${table.id}"]`);
    const rows = all("tr.cell", table);
    tools.hidden = false;
    for (const row of rows) {
      fold(row, false);
      row.querySelector(".unfold").addEventListener("click", () => fold(row, !isOpen(row)));
    }
    for (const header of all("thead th", table)) header.querySelector(".sort").addEventListener("click", () => sortBy(table, header));
    tools.querySelector(".filter").addEventListener("input", () => filter(table, tools));
    tools.querySelector(".status-filter")?.addEventListener("change", () => filter(table, tools));
    const unfoldAll = tools.querySelector(".unfold-all");
    unfoldAll.addEventListener("click", () => {
      const open = unfoldAll.getAttribute("aria-pressed") !== "true";
      unfoldAll.setAttribute("aria-pressed", String(open));
      unfoldAll.textContent = open ? "Fold all" : "Unfold all";
      rows.forEach((row) => fold(row, open));
    });
  }

  // --- the number of calls moves along the costs

  for (const figure of all("figure.costs")) {
    const stops = JSON.parse(figure.querySelector(".stops").textContent);
    const slider = figure.querySelector("input[type=range]");
    const move = () => {
      const stop = stops[Number(slider.value)];
      figure.querySelector(".cursor").setAttribute("transform", `translate(${stop.x} 0)`);
      figure.querySelector("output").textContent = stop.said;
      slider.setAttribute("aria-valuetext", stop.said);
      figure.querySelector(".totals").replaceChildren(...stop.totals.map(([number, total]) => {
        const line = document.createElement("li");
        line.className = `k${number}`;
        const [chip, name, value] = ["i", "span", "b"].map((tag) => document.createElement(tag));
        name.textContent = labels[number];
        value.textContent = total;
        line.append(chip, name, " ", value);
        return line;
      }));
    };
    figure.querySelector(".calls").hidden = false;
    slider.addEventListener("input", move);
    move();
  }

  // --- one configuration in all figures

  for (const legend of all(".legend")) {
    const charts = legend.nextElementSibling;
    const buttons = all("button", legend);
    for (const button of buttons) {
      button.addEventListener("click", () => {
        const on = button.getAttribute("aria-pressed") !== "true";
        buttons.forEach((other) => other.setAttribute("aria-pressed", String(on && other === button)));
        charts.classList.toggle("lit", on);
        all(".mark", charts).forEach((mark) => mark.classList.toggle("on", !mark.dataset.k || mark.dataset.k === button.dataset.k));
      });
    }
  }

  // --- tips: by pointer, by touch, and by the arrow keys in a focused figure

  const tip = document.getElementById("tip");
  const tips = new Map();
  for (const mark of all(".mark")) {
    const title = mark.querySelector("title");
    tips.set(mark, title.textContent);
    title.remove();  // else the browser's own tip stands beside ours
  }
  const showTip = (mark) => {
    tip.textContent = tips.get(mark);
    tip.hidden = false;
    const at = mark.getBoundingClientRect();
    const left = Math.min(Math.max(8, at.left + at.width / 2 - tip.offsetWidth / 2), document.documentElement.clientWidth - tip.offsetWidth - 8);
    const above = at.top - tip.offsetHeight - 8;
    tip.style.left = `${left + scrollX}px`;
    tip.style.top = `${(above < 4 ? at.bottom + 8 : above) + scrollY}px`;
  };
  const hideTip = () => { tip.hidden = true; };
  let byKey = false;  // then what the page scrolls below a resting pointer does not matter
  document.addEventListener("pointerover", (event) => {
    const mark = event.target.closest?.(".mark");
    if (byKey) return;
    if (mark) showTip(mark); else hideTip();
  });
  document.addEventListener("pointerdown", () => { byKey = false; });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });
  for (const svg of all(".chart svg")) {
    const marks = all(".mark", svg);
    let at = -1;
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step || !marks.length) return;
      event.preventDefault();
      marks[at]?.classList.remove("pointed");
      at = (at + step + marks.length) % marks.length;
      marks[at].classList.add("pointed");
      byKey = true;
      showTip(marks[at]);
    });
    svg.addEventListener("blur", () => { marks[at]?.classList.remove("pointed"); at = -1; byKey = false; hideTip(); });
  }

  // --- modules as nested boxes: all figures zoom together, by pointer and by keys

  for (const figures of all(".icicles")) {
    const groups = all(".boxes", figures);
    const boxOf = (group, number) => group.querySelector(`[data-n="${number}"]`);
    const above = new Map(all(".box", figures).map((box) => [box.dataset.n, box.dataset.above]));
    const edge = (box, name) => Number(box.style.getPropertyValue(name));
    const zoom = (number) => {
      const held = groups.map((group) => {  // a module that this cell has not, or the nearest one that holds it
        let at = number;
        while (!boxOf(group, at)) at = above.get(at);
        return boxOf(group, at);
      });
      const width = Math.max(...held.map((box) => edge(box, "--s")));
      groups.forEach((group, place) => {
        const left = edge(held[place], "--x");
        group.style.setProperty("--from", left);
        group.style.setProperty("--to", left + edge(held[place], "--s"));
        group.style.setProperty("--scale", width);
      });
    };
    const isShown = (box) => {
      const [from, to] = ["--from", "--to"].map((name) => edge(box.parentElement, name));
      return edge(box, "--x") < to && edge(box, "--x") + edge(box, "--s") > from;
    };
    const say = (box) => { document.getElementById("pointed").textContent = box.textContent; };
    const goTo = (box) => {
      if (!box) return;
      for (const other of all(".box", box.parentElement)) other.tabIndex = other === box ? 0 : -1;
      if (!isShown(box)) zoom(box.dataset.above);
      box.focus({ preventScroll: true });
    };
    for (const group of groups) {
      all(".box", group).forEach((box, place) => { box.tabIndex = place ? -1 : 0; });
      group.addEventListener("click", (event) => { const box = event.target.closest(".box"); if (box) { zoom(box.dataset.n); goTo(box); } });
      for (const kind of ["focusin", "pointerover"]) group.addEventListener(kind, (event) => { const box = event.target.closest(".box"); if (box) say(box); });
      group.addEventListener("keydown", (event) => {
        const box = event.target.closest(".box");
        const inside = (number) => all(`[data-above="${number}"]`, group).filter((other) => other.dataset.n !== number);
        const beside = inside(box.dataset.above);
        const next = {
          ArrowLeft: () => goTo(beside[beside.indexOf(box) - 1]),
          ArrowRight: () => goTo(beside[beside.indexOf(box) + 1]),
          ArrowDown: () => goTo(inside(box.dataset.n)[0]),
          ArrowUp: () => goTo(boxOf(group, box.dataset.above)),
          Escape: () => zoom(group.firstElementChild.dataset.n),
        }[event.key];
        if (!next) return;
        event.preventDefault();
        next();
      });
    }
    zoom(groups[0].firstElementChild.dataset.n);
  }

  // --- commands to copy

  for (const command of all(".command")) {
    const button = command.querySelector(".copy");
    if (!navigator.clipboard) continue;
    button.hidden = false;
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(command.querySelector("code").textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }
}
