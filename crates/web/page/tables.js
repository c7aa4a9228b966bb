// Tables of the last second. Rows are kept and changed in place, and keep their order while one of them has the focus or the
// pointer, so that a click meets the row that it was aimed at.

import { LONG } from "./api.js";
import { button, byId, element } from "./dom.js";

const TABLE_ROWS = 50;
// Rows that are kept while the table is held, with those that do nothing any more.
const MAX_HELD_ROWS = 200;

export class Table {
  // `ask` is called with the name in a cell that can be asked about.
  constructor(id, ask) {
    this.table = byId(id);
    this.body = this.table.tBodies[0];
    this.ask = ask;
    this.rows = new Map();
  }

  isHeld() {
    return this.body.matches(":hover") || this.body.contains(document.activeElement);
  }

  // Rows are { key, cells }, in their order; a cell is a text, or { name } for a button that asks about it.
  fill(rows) {
    const wanted = new Map(rows.slice(0, TABLE_ROWS).map((row) => [row.key, row.cells]));
    const isHeld = this.isHeld();
    for (const [key, row] of this.rows) {
      if (wanted.has(key)) continue;
      if (isHeld && this.rows.size <= MAX_HELD_ROWS) {
        // It did nothing in this second.
        row.classList.add("idle");
        continue;
      }
      row.remove();
      this.rows.delete(key);
    }
    let before = this.body.rows[0];
    for (const [key, cells] of wanted) {
      let row = this.rows.get(key);
      if (!row) {
        row = this.newRow(cells);
        this.rows.set(key, row);
        this.body.insertBefore(row, isHeld ? null : before ?? null);
      } else if (!isHeld && row !== before) {
        this.body.insertBefore(row, before ?? null);
      }
      if (row === before) before = before.nextElementSibling;
      row.classList.remove("idle");
      cells.forEach((cell, n) => {
        const place = row.cells[n].firstElementChild;
        const text = cell.name ?? cell;
        if (place.textContent === text) return;
        place.textContent = text;
        place.classList.toggle("long", text.length > LONG);
      });
    }
  }

  newRow(cells) {
    const row = document.createElement("tr");
    cells.forEach((cell, n) => {
      const place = element("td", undefined, row);
      place.className = this.table.tHead.rows[0].cells[n].className;
      if (cell.name === undefined) element("span", "", place);
      else button("", `What limits ${cell.name}?`, place, () => this.ask(cell.name)).className = "name";
    });
    return row;
  }

  clear() {
    this.rows.clear();
    this.body.replaceChildren();
  }
}
