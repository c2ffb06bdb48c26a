
// The page is complete without this. It sorts tables by their heads, hides what a filter leaves out, and opens what is folded
// before the page is printed. No "less than" and no "and" sign is in it, so that it is XML as it stands.
"use strict";
(function () {
  function key(row, column, kind) {
    var cell = row.cells[column];
    var text = cell.dataset.v === undefined ? cell.textContent.trim() : cell.dataset.v;
    if (kind !== "number") return text;
    var number = parseFloat(text);
    return isNaN(number) ? null : number;
  }

  // What has no figure stays last, whichever way the others are sorted.
  function compare(a, b, sign) {
    if (a === null) return b === null ? 0 : 1;
    if (b === null) return -1;
    return sign * (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true }));
  }

  function sort(table, column) {
    var heads = Array.from(table.tHead.rows[0].cells);
    var head = heads[column];
    var descending = head.getAttribute("aria-sort") === "ascending";
    heads.forEach(function (other) { other.removeAttribute("aria-sort"); });
    head.setAttribute("aria-sort", descending ? "descending" : "ascending");
    var body = table.tBodies[0];
    var rows = Array.from(body.rows).map(function (row) { return [key(row, column, head.dataset.kind), row]; });
    rows.sort(function (a, b) { return compare(a[0], b[0], descending ? -1 : 1); });
    rows.forEach(function (row) { body.appendChild(row[1]); });
  }

  document.querySelectorAll("table.sortable").forEach(function (table) {
    Array.from(table.tHead.rows[0].cells).forEach(function (head, column) {
      var button = document.createElement("button");
      button.type = "button";
      button.append.apply(button, Array.from(head.childNodes));
      head.appendChild(button);
      button.addEventListener("click", function () { sort(table, column); });
    });
  });

  var form = document.querySelector(".filter");
  var paper = document.getElementById("filter-paper");
  var verdict = document.getElementById("filter-verdict");
  function filter() {
    var shown = 0, all = 0;
    document.querySelectorAll("[data-paper]").forEach(function (part) {
      var fits = [[paper.value, part.dataset.paper], [verdict.value, part.dataset.verdict]].every(function (pair) {
        return pair[0] === "" ? true : pair[0] === pair[1];
      });
      part.hidden = !fits;
      if (part.tagName.toLowerCase() === "tr") { all += 1; shown += fits ? 1 : 0; }
    });
    document.getElementById("filter-count").textContent = shown === all ? "" : shown + " of " + all + " experiments";
  }
  form.hidden = false;
  form.addEventListener("change", filter);
  form.addEventListener("submit", function (event) { event.preventDefault(); });
  filter();

  window.addEventListener("beforeprint", function () {
    document.querySelectorAll("details.figures").forEach(function (part) { part.open = true; });
  });
})();
