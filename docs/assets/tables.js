// Tables in a box of the class "sortable": a click on a head sorts, words in the field above keep the rows that have them all.
// Without this file they are plain tables.
for (const table of document.querySelectorAll(".sortable table")) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const value = (row, column) => {
    const cell = row.cells[column];
    return "sort" in cell.dataset ? Number(cell.dataset.sort) : cell.textContent;
  };
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const sort = () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      rows.sort((a, b) => {
        const [x, y] = [value(a, column), value(b, column)];
        const order = typeof x === "number" ? x - y : x.localeCompare(y);
        return up ? order : -order;
      });
      body.append(...rows);
    };
    head.tabIndex = 0;
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => event.key === "Enter" && sort());
  });
  const filter = document.createElement("input");
  const count = document.createElement("small");
  const show = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    count.textContent = ` ${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
  };
  filter.type = "search";
  filter.className = "filter";
  filter.placeholder = "Filter: dinov2, swin, 224x224, hub:timm";
  filter.setAttribute("aria-label", "Filter the table");
  filter.addEventListener("input", show);
  table.closest(".sortable").before(filter, count);
  show();
}
