//! The rules with shorter durations, so that what takes hours takes minutes.

/// The rules with every duration divided by `factor`, and so every age in seconds or transactions that is compared. Alerts `without`
/// are left out.
pub fn rules(text: &str, factor: u64, without: &[&str]) -> String {
    let mut scaled = String::new();
    let mut is_left_out = false;
    for line in text.lines() {
        let item = line.trim_start();
        if item.starts_with("- ") {
            let alert = item.strip_prefix("- alert: ");
            is_left_out = alert.is_some_and(|alert| without.contains(&alert));
        }
        if is_left_out {
            continue;
        }
        scaled.push_str(&line_of(line, factor));
        scaled.push('\n');
    }
    scaled
}

fn line_of(line: &str, factor: u64) -> String {
    if line.trim_start().starts_with('#') {
        return line.to_owned();
    }
    if let Some((before, duration)) = line.split_once("for: ") {
        return format!("{before}for: {}", divided(duration, factor));
    }
    if let Some((before, age)) = line
        .split_once("_seconds) > ")
        .or_else(|| line.split_once("_transactions) > "))
    {
        let age: u64 = age.parse().expect("a number");
        let unit = &line[before.len()..line.len() - age.to_string().len()];
        return format!("{before}{unit}{}", age / factor);
    }
    with_ranges(line, factor)
}

/// The line with each `[5m]` and `[1h:5m]` divided.
fn with_ranges(line: &str, factor: u64) -> String {
    let mut parts = line.split('[');
    let mut scaled = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (range, rest) = part.split_once(']').expect("a closed range");
        let range: Vec<String> = range.split(':').map(|duration| divided(duration, factor)).collect();
        scaled.push_str(&format!("[{}]{rest}", range.join(":")));
    }
    scaled
}

/// A duration of Prometheus, divided. It is one of whole seconds.
fn divided(duration: &str, factor: u64) -> String {
    let (number, unit) = duration.split_at(duration.len() - 1);
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => panic!("{duration} is no duration"),
    };
    let seconds = number.parse::<u64>().expect("a number") * seconds;
    assert_eq!(seconds % factor, 0, "{duration} cannot be divided by {factor}");
    format!("{}s", seconds / factor)
}

#[test]
fn durations_and_ages_are_divided_and_nothing_else() {
    let text = "\
      - record: a:b_late:ratio_rate5m
        expr: |
          rate(x[5m]) > 14.4 * 0.01
      - alert: Left
        expr: y
      - alert: Kept
        # An hour, [1h].
        expr: max by (job) (z_seconds) > 900
        for: 15m
      - alert: Other
        expr: count_over_time((x{a=\"b\"})[1h:5m]) >= 6
";
    let expected = "\
      - record: a:b_late:ratio_rate5m
        expr: |
          rate(x[15s]) > 14.4 * 0.01
      - alert: Kept
        # An hour, [1h].
        expr: max by (job) (z_seconds) > 45
        for: 45s
      - alert: Other
        expr: count_over_time((x{a=\"b\"})[180s:15s]) >= 6
";
    assert_eq!(rules(text, 20, &["Left"]), expected);
}
