//! Tables with aligned columns, or with tabs for scripts.

/// Alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// A table that is printed when it is complete.
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
    scripted: bool,
}

impl Table {
    /// A table with these columns; `scripted` prints tabs and no header.
    pub fn new(columns: impl IntoIterator<Item = (String, Align)>, scripted: bool) -> Self {
        Table { columns: columns.into_iter().collect(), rows: Vec::new(), scripted }
    }

    /// Appends a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The text, lines ended.
    pub fn text(&self) -> String {
        if self.scripted {
            return self.rows.iter().map(|r| r.join("\t") + "\n").collect();
        }
        let mut widths: Vec<usize> = self.columns.iter().map(|(name, _)| name.chars().count()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let header: Vec<String> = self.columns.iter().map(|(name, _)| name.clone()).collect();
        std::iter::once(&header).chain(&self.rows).map(|row| self.line(row, &widths)).collect()
    }

    fn line(&self, row: &[String], widths: &[usize]) -> String {
        let mut out = String::new();
        let last = row.len().saturating_sub(1);
        for (i, cell) in row.iter().enumerate() {
            let width = widths.get(i).copied().unwrap_or(0);
            let align = self.columns.get(i).map_or(Align::Left, |c| c.1);
            if i > 0 {
                out.push_str("  ");
            }
            match align {
                Align::Left if i == last => out.push_str(cell),
                Align::Left => out.push_str(&format!("{cell:<width$}")),
                Align::Right => out.push_str(&format!("{cell:>width$}")),
            }
        }
        out.truncate(out.trim_end().len());
        out.push('\n');
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn for_people_and_for_scripts() {
        let columns = || [("NAME".to_owned(), Align::Left), ("SIZE".to_owned(), Align::Right)];
        for (scripted, text) in [(false, "NAME  SIZE\na       1K\n"), (true, "a\t1K\n")] {
            let mut t = Table::new(columns(), scripted);
            t.row(vec!["a".into(), "1K".into()]);
            assert_eq!(t.text(), text);
        }
    }
}
