//! Text for people: columns, numbers, and what others wrote without its control characters.

use std::time::SystemTime;

use super::status::plain;

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

/// A number with its thousands apart: 1,234,567.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// A number with what it counts: "1 topic", "1,234 topics".
pub fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(number), if number == 1 { one } else { many })
}

/// A time, in UTC.
pub fn time(at: SystemTime) -> String {
    humantime::format_rfc3339_seconds(at).to_string()
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

    #[test]
    fn thousands_are_apart() {
        let shown: Vec<String> = [0, 999, 1_000, 1_234_567].map(grouped).to_vec();
        assert_eq!(shown, ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(counted(1, "topic", "topics"), "1 topic");
        assert_eq!(counted(1000, "topic", "topics"), "1,000 topics");
    }
}
