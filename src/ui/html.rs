//! What the pages share: the frame around each, and how texts, numbers and ages are written.

use maud::{DOCTYPE, Markup, html};

use crate::words::{age, grouped, plain};

/// A part of the page, as the navigation names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tab {
    Overview,
    Dead,
    Holds,
    Pauses,
    Audit,
}

impl Tab {
    const ALL: [Tab; 5] = [Tab::Overview, Tab::Dead, Tab::Holds, Tab::Pauses, Tab::Audit];

    fn path(self) -> &'static str {
        match self {
            Tab::Overview => "/",
            Tab::Dead => "/dead",
            Tab::Holds => "/holds",
            Tab::Pauses => "/pauses",
            Tab::Audit => "/audit",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Tab::Overview => "Overview",
            Tab::Dead => "Dead letters",
            Tab::Holds => "Holds",
            Tab::Pauses => "Pauses",
            Tab::Audit => "Audit",
        }
    }
}

/// What surrounds the content of a page.
pub struct Frame<'a> {
    pub title: &'a str,
    pub tab: Option<Tab>,
    /// What a form carries that is posted. `None` if nobody is logged in.
    pub form_field: Option<Markup>,
    pub is_read_only: bool,
    pub schema: &'a str,
    pub worker: &'a str,
}

impl<'a> Frame<'a> {
    /// For who is not logged in.
    pub fn bare(title: &'a str) -> Self {
        Frame {
            title,
            tab: None,
            form_field: None,
            is_read_only: false,
            schema: "",
            worker: "",
        }
    }
}

pub fn page(frame: &Frame<'_>, content: Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (frame.title) " · outboxd" }
                link rel="icon" type="image/svg+xml" href="/favicon.svg";
                link rel="stylesheet" href="/ui.css";
                script src="/ui.js" defer {}
                @if frame.tab == Some(Tab::Overview) {
                    noscript { meta http-equiv="refresh" content="5"; }
                }
            }
            body {
                a.skip href="#content" { "Skip to the content" }
                @if let Some(form_field) = &frame.form_field { (header(frame, form_field)) }
                main #content { (content) }
                @if frame.form_field.is_some() { (footer(frame)) }
            }
        }
    }
}

fn header(frame: &Frame<'_>, form_field: &Markup) -> Markup {
    html! {
        header {
            a.brand href="/" { "outboxd" }
            nav aria-label="Pages" {
                @for tab in Tab::ALL {
                    a href=(tab.path()) aria-current=[(frame.tab == Some(tab)).then_some("page")] { (tab.name()) }
                }
            }
            @if frame.is_read_only {
                span.badge title="Started without --ui-database-url-file" { "read-only" }
            }
            form method="post" action="/logout" {
                (form_field)
                button.quiet type="submit" { "Log out" }
            }
        }
        p #stale role="status" hidden { "Not connected. What is shown is old." }
    }
}

fn footer(frame: &Frame<'_>) -> Markup {
    html! {
        footer {
            "outboxd " (env!("CARGO_PKG_VERSION")) " · schema " (frame.schema) " · answered by " (foreign(frame.worker))
        }
    }
}

/// A title and a sentence, if there is nothing else to show.
pub fn message(title: &str, text: &str) -> Markup {
    html! {
        div.message {
            h1 { (title) }
            p { (foreign(text)) }
            p { a href="/" { "Overview" } }
        }
    }
}

/// What the script replaces by the same part of a newer page.
pub fn live(content: Markup) -> Markup {
    html! { div #live { (content) } }
}

/// A text that others chose. It is escaped, and can neither turn the direction of what surrounds it nor hide a part of itself.
pub fn foreign(text: &str) -> Markup {
    html! { bdi { (plain(text)) } }
}

/// The same of a key. The empty key is one, too.
pub fn key(key: Option<&str>) -> Markup {
    match key {
        None => html! { span.none { "none" } },
        Some("") => html! { span.none { "empty" } },
        Some(key) => foreign(key),
    }
}

/// A sentence with commands between backticks.
pub fn sentence(text: &str) -> Markup {
    html! {
        @for (at, part) in text.split('`').enumerate() {
            @if at % 2 == 1 { code { (part) } } @else { (part) }
        }
    }
}

/// A span of time in at most two units: "2h 13m", "1.9s".
pub fn span(seconds: f64) -> String {
    if (1.0..9.95).contains(&seconds) && seconds.fract() != 0.0 {
        return format!("{seconds:.1}s");
    }
    let whole = age(if seconds < 1.0 { seconds } else { seconds.floor() });
    whole.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

/// A count, with its thousands apart.
pub fn number(count: i64) -> String {
    grouped(count.unsigned_abs())
}

/// A rate, with one digit behind the point where there is little of it.
pub fn rate(a_second: f64) -> String {
    if a_second < 10.0 && a_second.fract() != 0.0 {
        return format!("{a_second:.1}");
    }
    grouped(a_second.round() as u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn commands_in_a_sentence_stand_out() {
        let text = "Run `outboxd dead list` or `x <y>`.";
        let shown = sentence(text).into_string();
        assert_eq!(shown, "Run <code>outboxd dead list</code> or <code>x &lt;y&gt;</code>.");
    }

    #[test]
    fn no_markup_is_written_by_hand() {
        let folders =
            ["src/ui", "src/ui/dead", "src/ui/gate"].map(|folder| std::fs::read_dir(folder).expect("it can be read"));
        let files = folders
            .into_iter()
            .flatten()
            .map(|file| file.expect("it can be read").path());
        let sources = files.filter(|file| file.extension().is_some_and(|extension| extension == "rs"));
        for source in sources {
            let text = std::fs::read_to_string(&source).expect("a source file is text");
            assert!(!text.contains(concat!("Pre", "Escaped")), "{}", source.display());
        }
    }

    #[test]
    fn quantities_are_short() {
        let spans = [0.0, 0.25, 1.906, 9.96, 59.9, 90.0, 8_000.0, 200_000.0].map(span);
        assert_eq!(
            spans,
            ["0s", "250ms", "1.9s", "9s", "59s", "1m 30s", "2h 13m", "2days 7h"]
        );
        assert_eq!([0.0, 0.44, 9.96, 1_234.5].map(rate), ["0", "0.4", "10.0", "1,235"]);
        assert_eq!(number(1_234), "1,234");
    }

    #[test]
    fn what_others_wrote_can_neither_be_markup_nor_hide_itself() {
        let shown = foreign("<script>alert(1)</script>\"'&\u{202e}\u{0}").into_string();
        assert_eq!(
            shown,
            "<bdi>&lt;script&gt;alert(1)&lt;/script&gt;&quot;'&amp;\\u{202e}\\u{0}</bdi>"
        );
        assert_eq!(key(Some("")).into_string(), "<span class=\"none\">empty</span>");
    }

    proptest! {
        #[test]
        fn no_text_leaves_its_place(text: String) {
            for shown in [foreign(&text), key(Some(&text)), sentence(&text), message(&text, &text)] {
                let shown = shown.into_string();
                let own = message("", "").into_string() + "<bdi></bdi><span class=\"none\">empty</span><code></code>";
                let tags = shown.split('<').skip(1).map(|tag| tag.split('>').next().unwrap_or_default());
                for tag in tags {
                    prop_assert!(own.contains(&format!("<{tag}>")), "{}", shown);
                }
            }
        }
    }
}
