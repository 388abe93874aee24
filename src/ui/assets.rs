//! The style sheet, the script and the icon. They are compiled in, so the page needs nothing from elsewhere.

use axum::http::header::{CONTENT_TYPE, HeaderName};

type Asset = ([(HeaderName, &'static str); 1], &'static str);

pub async fn css() -> Asset {
    (
        [(CONTENT_TYPE, "text/css; charset=utf-8")],
        include_str!("assets/ui.css"),
    )
}

pub async fn js() -> Asset {
    (
        [(CONTENT_TYPE, "text/javascript; charset=utf-8")],
        include_str!("assets/ui.js"),
    )
}

pub async fn icon() -> Asset {
    ([(CONTENT_TYPE, "image/svg+xml")], include_str!("assets/icon.svg"))
}
