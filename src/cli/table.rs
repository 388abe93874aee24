//! Text for people in columns, without the control characters of others.

use crate::words::plain;

/// Rows under a header, each column as wide as its widest cell. The last column is not padded. Every cell is made safe to show.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let header: Vec<String> = header.iter().map(|name| (*name).to_owned()).collect();
    let shown = rows.iter().map(|row| row.iter().map(|cell| plain(cell)).collect());
    let lines: Vec<Vec<String>> = std::iter::once(header).chain(shown).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let widths: Vec<usize> = (0..lines[0].len()).map(|column| width(column).unwrap_or(0)).collect();
    let text = lines.iter().map(|line| {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    });
    text.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [
            vec!["7".to_owned(), "a\nb".to_owned()],
            vec!["1234".to_owned(), String::new()],
        ];
        assert_eq!(table(&["ID", "KEY"], &rows), "ID    KEY\n7     a\\u{a}b\n1234\n");
    }
}
